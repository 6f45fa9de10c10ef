// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/driver.h"

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#if GPUMEM_WITH_CUDA

#include <memory>
#include <utility>

#include "common/cuda/dynamic_library.h"

namespace gpumem {
namespace {

// Returns advice for the machine's operator after a failed cuInit.
absl::string_view InitHelp(CUresult result) {
  switch (result) {
    case CUDA_ERROR_NO_DEVICE:
      return "there is no NVIDIA GPU here, or CUDA_VISIBLE_DEVICES hides every one";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return "libcuda.so.1 and the kernel module are of different versions; reload the module or "
             "reboot after a driver update, and give containers the host's libraries";
    case CUDA_ERROR_STUB_LIBRARY:
      return "libcuda.so.1 is the toolkit's stub; take the stubs folder off the library path";
    case CUDA_ERROR_OPERATING_SYSTEM:
      return "check that /proc of this PID namespace is mounted and /dev/nvidia* are accessible";
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "check that nvidia-fabricmanager runs";
    default:
      return "check that the kernel module is loaded and /dev/nvidia* are accessible";
  }
}

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
std::string UuidText(const CUuuid& uuid) {
  const std::string hex = absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  const absl::string_view digits = hex;
  return absl::StrCat("GPU-", digits.substr(0, 8), "-", digits.substr(8, 4), "-",
                      digits.substr(12, 4), "-", digits.substr(16, 4), "-", digits.substr(20));
}

}  // namespace

absl::StatusOr<const CudaDriver*> CudaDriver::Get() {
  static const auto* const result = new absl::StatusOr<const CudaDriver*>(Load());
  return *result;
}

absl::StatusOr<const CudaDriver*> CudaDriver::Load() {
  absl::StatusOr<DynamicLibrary> library = DynamicLibrary::Open("libcuda.so.1");
  if (!library.ok()) {
    return absl::UnavailableError(absl::StrCat("no CUDA driver: ", library.status().message()));
  }
  std::unique_ptr<CudaDriver> driver(new CudaDriver);
#define GPUMEM_CUDA_FIND(name)                                                     \
  if (!library->Find(#name, driver->name)) {                                       \
    return absl::UnavailableError("the NVIDIA driver is too old: it has no " #name \
                                  "; CUDA 11.4's (470) or newer will do");         \
  }
  GPUMEM_CUDA_FUNCTIONS(GPUMEM_CUDA_FIND)
#undef GPUMEM_CUDA_FIND
#define GPUMEM_CUDA_FIND(name) library->Find(#name, driver->name);
  GPUMEM_CUDA_OPTIONAL_FUNCTIONS(GPUMEM_CUDA_FIND)
#undef GPUMEM_CUDA_FIND

  if (const CUresult result = driver->cuInit(0); result != CUDA_SUCCESS) {
    return absl::UnavailableError(
        absl::StrCat(driver->Error(result, "cuInit").message(), "; ", InitHelp(result)));
  }
  if (absl::Status status = driver->ListDevices(); !status.ok()) return status;
  return driver.release();
}

absl::Status CudaDriver::ListDevices() {
  int count = 0;
  if (const CUresult result = cuDeviceGetCount(&count); result != CUDA_SUCCESS) {
    return absl::UnavailableError(Error(result, "cuDeviceGetCount").message());
  }
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    CUuuid uuid = {};
    CUresult result = cuDeviceGet(&device, i);
    if (result == CUDA_SUCCESS) result = cuDeviceGetUuid_v2(&uuid, device);
    if (result != CUDA_SUCCESS) {
      return absl::UnavailableError(
          Error(result, absl::StrCat("asking for the UUID of CUDA device ", i)).message());
    }
    devices_.push_back({device, UuidText(uuid)});
  }
  if (devices_.empty()) {
    return absl::UnavailableError(
        absl::StrCat("the CUDA driver shows no device; ", InitHelp(CUDA_ERROR_NO_DEVICE)));
  }
  return absl::OkStatus();
}

absl::StatusOr<CUdevice> CudaDriver::FindDevice(absl::string_view uuid) const {
  for (const VisibleDevice& device : devices_) {
    if (device.uuid == uuid) return device.handle;
  }
  if (!absl::StartsWith(uuid, "GPU-") && !absl::StartsWith(uuid, "MIG-")) {
    return absl::NotFoundError(
        absl::StrCat("the device ", uuid, " is no GPU: CUDA does not know it"));
  }
  return absl::NotFoundError(
      absl::StrCat("this process does not see the device ", uuid,
                   "; CUDA_VISIBLE_DEVICES and the container's devices must include it"));
}

absl::Status CudaDriver::Error(CUresult result, absl::string_view what) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* words = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS) name = "an error without a name";
  if (cuGetErrorString(result, &words) != CUDA_SUCCESS) words = "unknown to this driver";
  const std::string message =
      absl::StrCat(what, ": ", name, " (", words, ", ", static_cast<int>(result), ")");
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return absl::ResourceExhaustedError(message);
    case CUDA_ERROR_NOT_SUPPORTED:
      return absl::UnimplementedError(message);
    case CUDA_ERROR_NOT_PERMITTED:
      return absl::PermissionDeniedError(message);
    case CUDA_ERROR_NOT_INITIALIZED:
      return absl::FailedPreconditionError(
          absl::StrCat(message, "; CUDA does not work in a child after fork()"));
    default:
      return absl::InternalError(message);
  }
}

}  // namespace gpumem

#else

namespace gpumem {

absl::StatusOr<const CudaDriver*> CudaDriver::Get() {
  return absl::UnavailableError("this build has no CUDA support: no CUDA toolkit was found");
}

}  // namespace gpumem

#endif
