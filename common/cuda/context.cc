// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/context.h"

#if GPUMEM_WITH_CUDA

#include "absl/strings/str_cat.h"

namespace gpumem {

absl::StatusOr<std::shared_ptr<const CudaContext>> CudaContext::Retain(const CudaDriver& driver,
                                                                       CUdevice device) {
  CUcontext context = nullptr;
  if (const CUresult result = driver.cuDevicePrimaryCtxRetain(&context, device);
      result != CUDA_SUCCESS) {
    return driver.Error(result, absl::StrCat("making a CUDA context on device ", device));
  }
  return std::shared_ptr<const CudaContext>(new CudaContext(driver, device, context));
}

}  // namespace gpumem

#endif
