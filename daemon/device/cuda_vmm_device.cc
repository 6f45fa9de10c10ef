// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/cuda_vmm_device.h"

#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/cuda/nvml.h"
#include "common/unique_fd.h"
#include "daemon/device/create_check.h"

namespace gpumemd {
namespace {

using gpumem::CudaDriver;
using gpumem::Nvml;

class VmmAllocation : public Allocation {
 public:
  explicit VmmAllocation(gpumem::UniqueFd fd) : fd_(std::move(fd)) {}
  int fd() const override { return fd_.get(); }

 private:
  const gpumem::UniqueFd fd_;
};

// Memory on the device itself, shareable by a file descriptor.
CUmemAllocationProp Properties(CUdevice device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

// Returns an exported allocation of host memory that is never used, but always open. The driver
// sets up state when the node's first allocation is exported and tears it down with the last. On an
// H200 with driver 580 each export and each close takes 1.2 ms without another open export, and 15
// to 20 us with one. It takes nothing from the GPU. Invalid if the driver cannot share host memory:
// then the first export is slow.
gpumem::UniqueFd ExportAnchor(const CudaDriver& driver) {
  constexpr size_t kBytes = size_t{2} << 20;  // a multiple of every granularity that we know
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  properties.location.id = 0;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  if (driver.cuMemCreate(&handle, kBytes, &properties, 0) != CUDA_SUCCESS) return {};
  const absl::Cleanup release = [&driver, handle] { driver.cuMemRelease(handle); };
  int fd = -1;
  if (driver.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                          0) != CUDA_SUCCESS) {
    return {};
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return gpumem::UniqueFd(fd);
}

// The driver's error in the codes of Device::Create.
absl::Status CreateError(const CudaDriver& driver, CUresult result, const std::string& what) {
  absl::Status status = driver.Error(result, what);
  if (absl::IsResourceExhausted(status)) return status;
  // The driver has no separate error for "no descriptors left": ask the kernel.
  const gpumem::UniqueFd probe(eventfd(0, EFD_CLOEXEC));
  if (!probe.valid() && (errno == EMFILE || errno == ENFILE)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(status.message(), "; raise the daemon's limit of open files"));
  }
  return absl::InternalError(status.message());
}

class CudaVmmDevice : public Device {
 public:
  // `nvml_device` is null if NVML does not know the device.
  CudaVmmDevice(const CudaDriver& driver, CUdevice device, DeviceInfo info, const Nvml* nvml,
                Nvml::Device* nvml_device)
      : driver_(driver),
        device_(device),
        info_(std::move(info)),
        nvml_(nvml),
        nvml_device_(nvml_device),
        anchor_(ExportAnchor(driver)) {}

  const DeviceInfo& info() const override { return info_; }

  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    const uint64_t bytes = spec.bytes;
    const std::string what = absl::StrCat(gpumem::FormatBytes(bytes), " on ", info_.uuid);
    const CUmemAllocationProp properties = Properties(device_);
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = driver_.cuMemCreate(&handle, bytes, &properties, 0);
    if (result != CUDA_SUCCESS) {
      return CreateError(driver_, result, absl::StrCat("allocating ", what));
    }
    // Success or not, the handle goes: exported memory belongs to its descriptors.
    const absl::Cleanup release = [this, handle] { driver_.cuMemRelease(handle); };

    int exported = -1;
    result = driver_.cuMemExportToShareableHandle(&exported, handle,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) {
      return CreateError(driver_, result, absl::StrCat("exporting ", what));
    }
    gpumem::UniqueFd fd(exported);
    if (fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
      return absl::InternalError(absl::ErrnoToStatus(errno, "F_SETFD").message());
    }
    return std::make_unique<VmmAllocation>(std::move(fd));
  }

  absl::StatusOr<std::unique_ptr<Allocation>> Adopt(const CreateSpec& spec,
                                                    gpumem::UniqueFd fd) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    return std::make_unique<VmmAllocation>(std::move(fd));
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
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaVmmDevice(DeviceInfo info) {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  absl::StatusOr<CUdevice> device = (*driver)->FindDevice(info.uuid);
  if (!device.ok()) return device.status();
  const bool shares =
      std::find(info.kinds.begin(), info.kinds.end(), Kind::kVmm) != info.kinds.end();
  info.kinds.clear();
  if (shares) info.kinds.push_back(Kind::kVmm);

  absl::StatusOr<const Nvml*> nvml = Nvml::Get();
  if (!nvml.ok()) {
    return std::make_unique<CudaVmmDevice>(**driver, *device, std::move(info), nullptr, nullptr);
  }
  absl::StatusOr<Nvml::Device*> nvml_device = (*nvml)->FindDevice(info.uuid);
  return std::make_unique<CudaVmmDevice>(**driver, *device, std::move(info), *nvml,
                                         nvml_device.ok() ? *nvml_device : nullptr);
}

}  // namespace gpumemd

#else

namespace gpumemd {

absl::StatusOr<std::unique_ptr<Device>> OpenCudaVmmDevice(DeviceInfo) {
  return gpumem::CudaDriver::Get().status();
}

}  // namespace gpumemd

#endif
