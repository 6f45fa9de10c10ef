// SPDX-License-Identifier: Apache-2.0
#include "client/mapping/visible_devices.h"

#include "common/cuda/driver.h"

namespace gpumem::internal {

#if GPUMEM_WITH_CUDA

absl::StatusOr<std::vector<std::string>> VisibleDevices() {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  std::vector<std::string> uuids;
  for (const CudaDriver::VisibleDevice& device : (*driver)->devices()) uuids.push_back(device.uuid);
  return uuids;
}

absl::Status CheckVisible(absl::string_view uuid) {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  return (*driver)->FindDevice(uuid).status();
}

#else

absl::StatusOr<std::vector<std::string>> VisibleDevices() { return CudaDriver::Get().status(); }

absl::Status CheckVisible(absl::string_view) { return CudaDriver::Get().status(); }

#endif

}  // namespace gpumem::internal
