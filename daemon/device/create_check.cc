// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/create_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"

namespace gpumemd {

absl::Status CheckCreate(const DeviceInfo& info, Kind kind, uint64_t bytes) {
  if (std::find(info.kinds.begin(), info.kinds.end(), kind) == info.kinds.end()) {
    return absl::UnimplementedError(absl::StrCat(
        "the device ", info.uuid, " does not make segments of kind ", KindName(kind),
        "; it makes those of kind ",
        absl::StrJoin(info.kinds, ", ",
                      [](std::string* out, Kind made) { absl::StrAppend(out, KindName(made)); })));
  }
  const uint64_t granularity = GranularityOf(info, kind);
  if (bytes == 0 || bytes % granularity != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the size of a segment of kind ", KindName(kind),
                                                   " on ", info.uuid, " is a multiple of ",
                                                   granularity, " bytes above zero, not ", bytes));
  }
  if (bytes > info.capacity_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the device ", info.uuid, " has ", gpumem::FormatBytes(info.capacity_bytes),
                     " in all; ", gpumem::FormatBytes(bytes), " were asked for"));
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
