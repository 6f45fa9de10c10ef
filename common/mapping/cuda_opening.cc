// SPDX-License-Identifier: Apache-2.0
#include "common/mapping/cuda_opening.h"

#if GPUMEM_WITH_CUDA

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gpumem {
namespace {

absl::string_view NameOf(const CudaDriver& driver, CUdevice device) {
  for (const CudaDriver::VisibleDevice& visible : driver.devices()) {
    if (visible.handle == device) return visible.uuid;
  }
  return "unknown";
}

}  // namespace

absl::StatusOr<std::vector<CUdevice>> FindCudaDevices(const CudaDriver& driver,
                                                      absl::Span<const std::string> uuids) {
  std::vector<CUdevice> devices;
  for (const std::string& uuid : uuids) {
    const absl::StatusOr<CUdevice> device = driver.FindDevice(uuid);
    if (!device.ok()) return device.status();
    if (std::find(devices.begin(), devices.end(), *device) == devices.end()) {
      devices.push_back(*device);
    }
  }
  return devices;
}

std::optional<CUdevice> FindVisible(const CudaDriver& driver, absl::string_view uuid) {
  const absl::StatusOr<CUdevice> device = driver.FindDevice(uuid);
  if (!device.ok()) return std::nullopt;
  return *device;
}

absl::Status CheckPeerAccess(const CudaDriver& driver, CUdevice user, CUdevice home) {
  if (user == home) return absl::OkStatus();
  int access = 0;
  if (const CUresult result = driver.cuDeviceCanAccessPeer(&access, user, home);
      result != CUDA_SUCCESS) {
    return driver.Error(result, "querying peer access");
  }
  if (access != 0) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "the device ", NameOf(driver, user), " has no peer access to memory of ",
      NameOf(driver, home), "; acquire the memory on the device that uses it, or copy it there"));
}

absl::Status OpenError(const CudaDriver& driver, CUresult result, absl::string_view what) {
  absl::Status error = driver.Error(result, what);
  switch (result) {
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_RESOURCE_TYPE:
    case CUDA_ERROR_NOT_FOUND:
      return absl::NotFoundError(
          absl::StrCat(error.message(), ": its owner has freed it or has ended"));
    default:
      return error;
  }
}

absl::StatusOr<uint64_t> AllocationBytes(const CudaContext& context, CUdeviceptr at) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  absl::Status status = context.Run("querying the size of opened memory", [&] {
    return context.driver().cuMemGetAddressRange_v2(&base, &bytes, at);
  });
  if (!status.ok()) return status;
  if (base == at) return bytes;
  return absl::InvalidArgumentError(
      absl::StrCat("the export data is of a part of an allocation, ", at - base,
                   " bytes after its start; only whole allocations can be opened"));
}

}  // namespace gpumem

#endif
