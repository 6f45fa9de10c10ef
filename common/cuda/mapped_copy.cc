// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/mapped_copy.h"

#include <cstring>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/context.h"
#include "common/cuda/driver.h"

namespace gpumem {

void CopyOnHost(absl::Span<const MappedCopy> copies) {
  for (const MappedCopy& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
}

#if GPUMEM_WITH_CUDA

namespace {

// A stream, and the event behind its last copy. Requires the context of its construction to be
// current in each call, the destructor included.
class CopyStream {
 public:
  explicit CopyStream(const CudaDriver& driver) : driver_(driver) {}
  ~CopyStream() {
    if (event_ != nullptr) driver_.cuEventDestroy_v2(event_);
    if (stream_ == nullptr) return;
    // Copies that were started before an error read memory that the caller may unmap.
    driver_.cuStreamSynchronize(stream_);
    driver_.cuStreamDestroy_v2(stream_);
  }
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  CUresult Copy(absl::Span<const MappedCopy> copies) {
    CUresult result = driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
    // A thread that waits for it sleeps.
    if (result == CUDA_SUCCESS) {
      result = driver_.cuEventCreate(&event_, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
    }
    for (const MappedCopy& copy : copies) {
      if (result != CUDA_SUCCESS) return result;
      result = driver_.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(copy.to),
                                     reinterpret_cast<CUdeviceptr>(copy.from), copy.bytes, stream_);
    }
    if (result == CUDA_SUCCESS) result = driver_.cuEventRecord(event_, stream_);
    return result == CUDA_SUCCESS ? driver_.cuEventSynchronize(event_) : result;
  }

 private:
  const CudaDriver& driver_;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
};

}  // namespace

absl::Status CopyOnDevice(const std::string& device_uuid, absl::Span<const MappedCopy> copies) {
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  const absl::StatusOr<CUdevice> device = (*driver)->FindDevice(device_uuid);
  if (!device.ok()) return device.status();
  const absl::StatusOr<std::shared_ptr<const CudaContext>> context =
      CudaContext::Retain(**driver, *device);
  if (!context.ok()) return context.status();
  return (*context)->Run(absl::StrCat("copying ", copies.size(), " allocation(s)"),
                         [&] { return CopyStream(**driver).Copy(copies); });
}

#else

absl::Status CopyOnDevice(const std::string&, absl::Span<const MappedCopy>) {
  return CudaDriver::Get().status();  // always an error: this build has no CUDA
}

#endif

}  // namespace gpumem
