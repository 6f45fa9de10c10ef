// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/synchronize.h"

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/context.h"
#include "common/cuda/driver.h"

namespace gpumem {

#if GPUMEM_WITH_CUDA

absl::Status SynchronizeDevices(absl::Span<const std::string> device_uuids) {
  if (device_uuids.empty()) return absl::OkStatus();
  const absl::StatusOr<const CudaDriver*> loaded = CudaDriver::Get();
  if (!loaded.ok()) return loaded.status();
  const CudaDriver& driver = **loaded;
  for (const std::string& uuid : device_uuids) {
    const absl::StatusOr<CUdevice> device = driver.FindDevice(uuid);
    if (!device.ok()) return device.status();
    unsigned int flags = 0;
    int active = 0;
    if (const CUresult result = driver.cuDevicePrimaryCtxGetState(*device, &flags, &active);
        result != CUDA_SUCCESS) {
      return driver.Error(result, absl::StrCat("querying the CUDA context on ", uuid));
    }
    if (active == 0) continue;
    const absl::StatusOr<std::shared_ptr<const CudaContext>> context =
        CudaContext::Retain(driver, *device);
    if (!context.ok()) return context.status();
    absl::Status status = (*context)->Run(absl::StrCat("waiting for the work on ", uuid),
                                          [&] { return driver.cuCtxSynchronize(); });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

#else

absl::Status SynchronizeDevices(absl::Span<const std::string> device_uuids) {
  return device_uuids.empty() ? absl::OkStatus() : CudaDriver::Get().status();
}

#endif

}  // namespace gpumem
