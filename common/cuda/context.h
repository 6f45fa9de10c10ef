// SPDX-License-Identifier: Apache-2.0
// A device's primary CUDA context, which the CUDA runtime also uses.
#pragma once

#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem {

// Retains the context while it lives. Thread-safe.
class CudaContext {
 public:
  // Returns the context. Makes it (some 0.2 s and 0.5 GB) unless this process has it already.
  //   RESOURCE_EXHAUSTED  the device has no memory left for it
  //   INTERNAL            any other error of the driver, by its name
  static absl::StatusOr<std::shared_ptr<const CudaContext>> Retain(const CudaDriver& driver,
                                                                   CUdevice device);
  ~CudaContext() { driver_.cuDevicePrimaryCtxRelease_v2(device_); }
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& driver() const { return driver_; }
  CUdevice device() const { return device_; }
  // Of the calling thread.
  bool is_current() const {
    CUcontext current = nullptr;
    return driver_.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context_;
  }

  // Calls `work`, which returns a CUresult, with the context as the thread's current one and under
  // RelaxedCapture. Returns its result, or the error that prevented the call.
  template <typename Work>
  CUresult Call(Work work) const {
    const RelaxedCapture relaxed(driver_);
    if (const CUresult result = driver_.cuCtxPushCurrent_v2(context_); result != CUDA_SUCCESS) {
      return result;
    }
    const CUresult result = work();
    CUcontext popped = nullptr;
    driver_.cuCtxPopCurrent_v2(&popped);
    return result;
  }

  // The same with the result as a status. `what` names the operation.
  template <typename Work>
  absl::Status Run(absl::string_view what, Work work) const {
    return driver_.Error(Call(std::move(work)), what);
  }

 private:
  // Takes ownership of one reference to `context`.
  CudaContext(const CudaDriver& driver, CUdevice device, CUcontext context)
      : driver_(driver), device_(device), context_(context) {}

  const CudaDriver& driver_;
  const CUdevice device_;
  CUcontext context_;
};

}  // namespace gpumem

#endif
