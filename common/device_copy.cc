#include "common/device_copy.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/cuda_driver.h"

namespace gpumem {
namespace {

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

CUdeviceptr DevicePointer(const void* mapped) { return reinterpret_cast<CUdeviceptr>(mapped); }

class CudaCopier : public DeviceCopier {
 public:
  // Takes over one reference to the device's primary context.
  CudaCopier(const CudaDriver& driver, CUdevice device, CUcontext context)
      : driver_(driver), device_(device), context_(context) {}
  ~CudaCopier() override { driver_.cuDevicePrimaryCtxRelease_v2(device_); }

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
  // Runs `work` in our context and waits for it: a copy from pageable memory and a
  // fill may return before the device has done them.
  template <typename Work>
  absl::Status Run(const std::string& what, Work work) {
    CUresult result = driver_.cuCtxPushCurrent_v2(context_);
    if (result != CUDA_SUCCESS) return driver_.Error(result, what);
    result = work();
    if (result == CUDA_SUCCESS) result = driver_.cuCtxSynchronize();
    CUcontext popped = nullptr;
    driver_.cuCtxPopCurrent_v2(&popped);
    if (result == CUDA_SUCCESS) return absl::OkStatus();
    return absl::InternalError(driver_.Error(result, what).message());
  }

  const CudaDriver& driver_;
  const CUdevice device_;
  CUcontext context_;
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
  CUcontext context = nullptr;
  if (const CUresult result = (*driver)->cuDevicePrimaryCtxRetain(&context, *device);
      result != CUDA_SUCCESS) {
    return (*driver)->Error(result, absl::StrCat("making a CUDA context on ", device_uuid));
  }
  return std::make_unique<CudaCopier>(**driver, *device, context);
}

#else

absl::StatusOr<std::unique_ptr<DeviceCopier>> DeviceCopier::ForCuda(const std::string&) {
  return CudaDriver::Get().status();
}

#endif

}  // namespace gpumem
