// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/cuda_vmm_device.h"

#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/nvml.h"
#include "common/unique_fd.h"
#include "daemon/device/charge_only.h"
#include "daemon/device/create_check.h"
#include "daemon/device/cuda_memory.h"
#include "daemon/device/tidy/driver_tidy.h"

namespace gpumemd {
namespace {

using gpumem::CudaDriver;
using gpumem::Nvml;

class VmmAllocation : public Allocation {
 public:
  // `tidy` may be null.
  VmmAllocation(gpumem::UniqueFd fd, uint64_t bytes, std::shared_ptr<DriverTidy> tidy)
      : fd_(std::move(fd)), bytes_(bytes), tidy_(std::move(tidy)) {}
  ~VmmAllocation() override {
    fd_.reset();
    if (tidy_ != nullptr) tidy_->Freed(bytes_);
  }
  int fd() const override { return fd_.get(); }

 private:
  gpumem::UniqueFd fd_;
  const uint64_t bytes_;
  const std::shared_ptr<DriverTidy> tidy_;
};

CUmemLocation LocationOf(CUdevice device) {
  CUmemLocation location = {};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

// Allocates and frees the least that the driver gives.
void AllocateLittle(const CudaDriver& driver, CUdevice device, uint64_t bytes) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = LocationOf(device);
  CUmemGenericAllocationHandle handle = 0;
  // A full device has no memory to give, and does its bookkeeping when it searches for some.
  if (driver.cuMemCreate(&handle, bytes, &properties, 0) == CUDA_SUCCESS) {
    driver.cuMemRelease(handle);
  }
}

// Returns an exported allocation of host memory that is never used, but always open. The driver
// sets up state when the node's first allocation is exported and tears it down with the last. On an
// H200 with driver 580 each export and each close takes 1.2 ms without another open export, and 15
// to 20 us with one. It takes nothing from the GPU. Invalid if the driver cannot share host memory:
// then the first export is slow.
gpumem::UniqueFd ExportAnchor(const CudaDriver& driver) {
  constexpr uint64_t kBytes = uint64_t{2} << 20;  // a multiple of every granularity that we know
  absl::StatusOr<gpumem::UniqueFd> fd = MakeCudaMemory(driver, HostLocation(0), kBytes, "the host");
  return fd.ok() ? *std::move(fd) : gpumem::UniqueFd();
}

class CudaVmmDevice : public Device {
 public:
  // `nvml_device` is null if NVML does not know the device.
  CudaVmmDevice(const CudaDriver& driver, CUdevice device, DeviceInfo info, bool tidies,
                const Nvml* nvml, Nvml::Device* nvml_device)
      : driver_(driver),
        device_(device),
        info_(std::move(info)),
        nvml_(nvml),
        nvml_device_(nvml_device),
        anchor_(ExportAnchor(driver)) {
    if (!tidies) return;
    tidy_ = std::make_shared<DriverTidy>([&driver, device, bytes = info_.granularity_bytes] {
      AllocateLittle(driver, device, bytes);
    });
  }

  const DeviceInfo& info() const override { return info_; }

  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    if (TraitsOf(spec.kind).charge_only) return MakeChargeOnly();
    absl::StatusOr<gpumem::UniqueFd> fd =
        MakeCudaMemory(driver_, LocationOf(device_), spec.bytes, info_.uuid);
    if (!fd.ok()) return fd.status();
    return std::make_unique<VmmAllocation>(*std::move(fd), spec.bytes, tidy_);
  }

  absl::StatusOr<std::unique_ptr<Allocation>> Adopt(const CreateSpec& spec,
                                                    gpumem::UniqueFd fd) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    if (TraitsOf(spec.kind).charge_only) return MakeChargeOnly();
    return std::make_unique<VmmAllocation>(std::move(fd), spec.bytes, tidy_);
  }

  absl::StatusOr<uint64_t> DriverFreeBytes() const override {
    if (nvml_device_ == nullptr) {
      return absl::UnavailableError(
          absl::StrCat("NVML does not report the free memory of ", info_.uuid, ""));
    }
    return nvml_->FreeBytes(nvml_device_);
  }

 private:
  const CudaDriver& driver_;
  const CUdevice device_;
  const DeviceInfo info_;
  const Nvml* const nvml_;
  Nvml::Device* const nvml_device_;
  const gpumem::UniqueFd anchor_;
  std::shared_ptr<DriverTidy> tidy_;  // null: it does not tidy
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaVmmDevice(DeviceInfo info, bool tidies) {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  absl::StatusOr<CUdevice> device = (*driver)->FindDevice(info.uuid);
  if (!device.ok()) return device.status();
  const bool shares =
      std::find(info.kinds.begin(), info.kinds.end(), Kind::kVmm) != info.kinds.end();
  info.kinds.clear();
  if (shares) info.kinds.push_back(Kind::kVmm);
  info.kinds.push_back(Kind::kDriver);

  absl::StatusOr<const Nvml*> nvml = Nvml::Get();
  if (!nvml.ok()) {
    return std::make_unique<CudaVmmDevice>(**driver, *device, std::move(info), tidies, nullptr,
                                           nullptr);
  }
  absl::StatusOr<Nvml::Device*> nvml_device = (*nvml)->FindDevice(info.uuid);
  return std::make_unique<CudaVmmDevice>(**driver, *device, std::move(info), tidies, *nvml,
                                         nvml_device.ok() ? *nvml_device : nullptr);
}

}  // namespace gpumemd

#else

namespace gpumemd {

absl::StatusOr<std::unique_ptr<Device>> OpenCudaVmmDevice(DeviceInfo, bool) {
  return gpumem::CudaDriver::Get().status();
}

}  // namespace gpumemd

#endif
