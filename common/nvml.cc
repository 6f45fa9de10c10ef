#include "common/nvml.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/dynamic_library.h"

namespace gpumem {
namespace {

constexpr int kSuccess = 0;         // NVML_SUCCESS
constexpr int kFeatureEnabled = 1;  // NVML_FEATURE_ENABLED

}  // namespace

absl::StatusOr<const Nvml*> Nvml::Get() {
  static const auto* const result = new absl::StatusOr<const Nvml*>(Load());
  return *result;
}

absl::StatusOr<const Nvml*> Nvml::Load() {
  absl::StatusOr<DynamicLibrary> library = DynamicLibrary::Open("libnvidia-ml.so.1");
  if (!library.ok()) {
    return absl::UnavailableError(absl::StrCat("no NVML: ", library.status().message()));
  }
  std::unique_ptr<Nvml> nvml(new Nvml);
  const bool complete = library->Find("nvmlInit_v2", nvml->init_) &&
                        library->Find("nvmlErrorString", nvml->error_string_) &&
                        library->Find("nvmlDeviceGetHandleByUUID", nvml->device_by_uuid_) &&
                        library->Find("nvmlDeviceGetMemoryInfo", nvml->memory_info_) &&
                        library->Find("nvmlDeviceGetPersistenceMode", nvml->persistence_mode_);
  if (!complete) {
    return absl::UnavailableError("libnvidia-ml.so.1 lacks functions that every driver has");
  }
  if (absl::Status status = nvml->Error(nvml->init_(), "nvmlInit_v2"); !status.ok()) return status;
  return nvml.release();
}

absl::Status Nvml::Error(Return result, const char* what) const {
  if (result == kSuccess) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(what, ": ", error_string_(result), " (NVML error ", result, ")"));
}

absl::StatusOr<Nvml::Device*> Nvml::FindDevice(const std::string& uuid) const {
  Device* device = nullptr;
  absl::Status status = Error(device_by_uuid_(uuid.c_str(), &device), "nvmlDeviceGetHandleByUUID");
  if (!status.ok()) return status;
  return device;
}

absl::StatusOr<uint64_t> Nvml::FreeBytes(Device* device) const {
  Memory memory = {};
  absl::Status status = Error(memory_info_(device, &memory), "nvmlDeviceGetMemoryInfo");
  if (!status.ok()) return status;
  return memory.free;
}

absl::StatusOr<bool> Nvml::PersistenceMode(Device* device) const {
  int mode = 0;
  absl::Status status = Error(persistence_mode_(device, &mode), "nvmlDeviceGetPersistenceMode");
  if (!status.ok()) return status;
  return mode == kFeatureEnabled;
}

}  // namespace gpumem
