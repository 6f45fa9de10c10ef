// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/device_copy.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/cuda/context.h"

namespace gpumem {
namespace {

// For mappings of host memory: the CPU reads and writes them directly.
class HostCopier : public DeviceCopier {
 public:
  absl::Status CopyIn(void* mapped, const void* host, uint64_t bytes) override {
    std::memcpy(mapped, host, bytes);
    return absl::OkStatus();
  }
  absl::Status CopyOut(void* host, const void* mapped, uint64_t bytes) override {
    std::memcpy(host, mapped, bytes);
    return absl::OkStatus();
  }
  absl::Status Fill(void* mapped, uint8_t value, uint64_t bytes) override {
    std::memset(mapped, value, bytes);
    return absl::OkStatus();
  }
};

#if GPUMEM_WITH_CUDA

// Returns the driver's form of an address: it is the same number.
CUdeviceptr DevicePointer(const void* mapped) { return reinterpret_cast<CUdeviceptr>(mapped); }

// For mappings of device memory: the CUDA driver copies, in the device's primary context.
class CudaCopier : public DeviceCopier {
 public:
  explicit CudaCopier(std::shared_ptr<const CudaContext> context)
      : context_(std::move(context)), driver_(context_->driver()) {}

  absl::Status CopyIn(void* mapped, const void* host, uint64_t bytes) override {
    return Run(absl::StrCat("copying ", bytes, " bytes to the device"),
               [&] { return driver_.cuMemcpyHtoD_v2(DevicePointer(mapped), host, bytes); });
  }
  absl::Status CopyOut(void* host, const void* mapped, uint64_t bytes) override {
    return Run(absl::StrCat("copying ", bytes, " bytes from the device"),
               [&] { return driver_.cuMemcpyDtoH_v2(host, DevicePointer(mapped), bytes); });
  }
  absl::Status Fill(void* mapped, uint8_t value, uint64_t bytes) override {
    return Run(absl::StrCat("filling ", bytes, " bytes of the device"),
               [&] { return driver_.cuMemsetD8_v2(DevicePointer(mapped), value, bytes); });
  }

 private:
  // Calls `work` with `context_` current, and blocks until the device has done it: a copy from
  // pageable host memory or a fill may return earlier. `what` begins the message of an error.
  template <typename Work>
  absl::Status Run(const std::string& what, Work work) {
    const CUresult result = context_->Call([&] {
      const CUresult started = work();
      return started == CUDA_SUCCESS ? driver_.cuCtxSynchronize() : started;
    });
    if (result == CUDA_SUCCESS) return absl::OkStatus();
    // The interface documents INTERNAL alone, so only the message is kept.
    return absl::InternalError(driver_.Error(result, what).message());
  }

  const std::shared_ptr<const CudaContext> context_;
  const CudaDriver& driver_;  // exists until the process ends
};

#endif

}  // namespace

std::unique_ptr<DeviceCopier> DeviceCopier::ForHost() { return std::make_unique<HostCopier>(); }

#if GPUMEM_WITH_CUDA

absl::StatusOr<std::unique_ptr<DeviceCopier>> DeviceCopier::ForCuda(
    const std::string& device_uuid) {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  absl::StatusOr<CUdevice> device = (*driver)->FindDevice(device_uuid);
  if (!device.ok()) return device.status();
  absl::StatusOr<std::shared_ptr<const CudaContext>> context =
      CudaContext::Retain(**driver, *device);
  if (!context.ok()) return context.status();
  return std::make_unique<CudaCopier>(*std::move(context));
}

#else

absl::StatusOr<std::unique_ptr<DeviceCopier>> DeviceCopier::ForCuda(const std::string&) {
  return CudaDriver::Get().status();  // always an error: this build has no CUDA
}

#endif

}  // namespace gpumem
