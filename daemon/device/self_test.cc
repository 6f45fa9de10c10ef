// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/self_test.h"

#include <fcntl.h>

#include <algorithm>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace gpumemd {

absl::Status SelfTest(Device& device) {
  const DeviceInfo& info = device.info();
  const auto kind = std::find_if_not(info.kinds.begin(), info.kinds.end(), IsContextBound);
  if (kind == info.kinds.end()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<Allocation>> memory =
      device.Create({.kind = *kind, .bytes = GranularityOf(info, *kind)});
  if (!memory.ok()) {
    return absl::Status(memory.status().code(),
                        absl::StrCat("the device ", info.uuid, " (", info.name,
                                     ") does not give memory: ", memory.status().message()));
  }
  if (fcntl((*memory)->fd(), F_GETFD) >= 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the device ", info.uuid, " (", info.name,
                   ") gives memory that cannot be shared: no descriptor of it is open"));
}

}  // namespace gpumemd
