// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "absl/status/status.h"
#include "common/mapping/host_ipc.h"
#include "common/mapping/host_owner.h"
#include "common/mapping/mapping.h"
#include "common/mapping/shared_openings.h"

namespace gpumem {
namespace {

SharedOpenings& OpenedIpc() {
  static const auto* const openings =
      new std::shared_ptr<SharedOpenings>(std::make_shared<SharedOpenings>());
  return **openings;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mapping>> OpenHostIpc(const std::string& runtime_dir,
                                                     const ExportData& handle, uint64_t bytes,
                                                     const MapOptions& options) {
  if (absl::Status status = CheckOpenOptions(options); !status.ok()) return status;
  if (!options.device_uuids.empty()) {
    return absl::InvalidArgumentError(
        "GPUs cannot use memory of the host backend; leave map_devices empty");
  }
  const std::optional<HostIpcHandle> parsed = FromExportData<HostIpcHandle>(handle);
  if (!parsed.has_value()) {
    return absl::InvalidArgumentError(
        "the export data is not a handle of kind ipc of the host backend");
  }
  return OpenedIpc().Get(handle, bytes, [&] {
    return OpenFromOwner(HostIpcSocket(runtime_dir, parsed->device_index), handle, "ipc");
  });
}

}  // namespace gpumem
