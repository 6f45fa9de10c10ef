// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/nvml.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/dynamic_library.h"

namespace gpumem {
namespace {

constexpr int kSuccess = 0;                          // NVML_SUCCESS
constexpr int kFeatureEnabled = 1;                   // NVML_FEATURE_ENABLED
constexpr int kInsufficientSize = 7;                 // NVML_ERROR_INSUFFICIENT_SIZE
constexpr unsigned long long kNotAvailable = ~0ull;  // NVML_VALUE_NOT_AVAILABLE

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
  library->Find("nvmlSystemGetDriverVersion", nvml->driver_version_);
  library->Find("nvmlSystemGetCudaDriverVersion_v2", nvml->cuda_version_);
  library->Find("nvmlDeviceGetComputeRunningProcesses_v3", nvml->compute_processes_);
  library->Find("nvmlDeviceGetGraphicsRunningProcesses_v3", nvml->graphics_processes_);
  library->Find("nvmlDeviceGetMPSComputeRunningProcesses_v3", nvml->mps_processes_);
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

absl::StatusOr<std::string> Nvml::DriverVersion() const {
  char version[80] = {};  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
  if (driver_version_ == nullptr) return absl::UnavailableError("NVML does not tell its version");
  absl::Status status =
      Error(driver_version_(version, sizeof version), "nvmlSystemGetDriverVersion");
  if (!status.ok()) return status;
  return std::string(version);
}

absl::StatusOr<std::string> Nvml::CudaVersion() const {
  int version = 0;  // 1000 * major + 10 * minor
  if (cuda_version_ == nullptr) return absl::UnavailableError("NVML does not tell CUDA's version");
  absl::Status status = Error(cuda_version_(&version), "nvmlSystemGetCudaDriverVersion_v2");
  if (!status.ok()) return status;
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::StatusOr<std::map<unsigned, std::optional<uint64_t>>> Nvml::Processes(Device* device) const {
  if (compute_processes_ == nullptr) {
    return absl::UnavailableError(
        "libnvidia-ml.so.1 does not list processes; use driver 510 or "
        "later");
  }
  std::map<unsigned, std::optional<uint64_t>> all;
  for (ListProcesses* const list : {compute_processes_, graphics_processes_, mps_processes_}) {
    if (list == nullptr) continue;
    std::vector<Process> processes(64);
    auto count = static_cast<unsigned>(processes.size());
    Return result = list(device, &count, processes.data());
    // More may come while we make room for those that there were.
    for (int attempt = 0; result == kInsufficientSize && attempt < 8; ++attempt) {
      processes.resize(2 * std::max<size_t>(count, processes.size()));
      count = static_cast<unsigned>(processes.size());
      result = list(device, &count, processes.data());
    }
    // A GPU may know compute processes alone.
    if (result != kSuccess && list != compute_processes_) continue;
    if (absl::Status status = Error(result, "listing processes"); !status.ok()) return status;
    processes.resize(std::min<size_t>(count, processes.size()));
    std::map<unsigned, std::optional<uint64_t>> listed;
    for (const Process& process : processes) {
      std::optional<uint64_t>& bytes = listed[process.pid];
      // With MIG, one entry for each instance that the process uses.
      if (process.bytes != kNotAvailable) bytes = bytes.value_or(0) + process.bytes;
    }
    // A process that computes and draws is in two lists, each time with its total.
    for (const auto& [pid, bytes] : listed) all[pid] = std::max(all[pid], bytes);
  }
  return all;
}

}  // namespace gpumem
