// SPDX-License-Identifier: Apache-2.0
// NVML (libnvidia-ml), loaded at run time: facts that the CUDA driver cannot report without a
// context. Nothing else in the project loads it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace gpumem {

// Immutable and thread-safe; so is NVML.
class Nvml {
 public:
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  struct Device;  // NVML's, opaque; valid while the process lives

  // Returns NVML. The first call loads and initialises it for good.
  //   UNAVAILABLE  no library, or it does not work here; the message says which
  static absl::StatusOr<const Nvml*> Get();

  // Returns the device of a UUID such as "GPU-…". NVML ignores CUDA_VISIBLE_DEVICES.
  //   UNAVAILABLE  NVML does not know it or does not report it
  absl::StatusOr<Device*> FindDevice(const std::string& uuid) const;

  // Returns the unused memory, by the driver's count.
  //   UNAVAILABLE  NVML does not report it
  absl::StatusOr<uint64_t> FreeBytes(Device* device) const;

  // True if the driver keeps the GPU's state while no process uses it.
  //   UNAVAILABLE  NVML does not report it
  absl::StatusOr<bool> PersistenceMode(Device* device) const;

  // Return the driver's version as its libraries have it, "580.159.04"; and the newest CUDA that
  // they support, "13.0".
  //   UNAVAILABLE  NVML does not report it
  absl::StatusOr<std::string> DriverVersion() const;
  absl::StatusOr<std::string> CudaVersion() const;

  // Returns the processes that use the device, by pid, with the bytes that each has allocated. The
  // bytes include contexts, but not always managed memory. Pids are those of this process's PID
  // namespace if the driver translates them; 0 stands for all processes outside it. No value: the
  // driver does not report the bytes.
  //   UNAVAILABLE  NVML does not report them; drivers before 510 never do
  absl::StatusOr<std::map<unsigned, std::optional<uint64_t>>> Processes(Device* device) const;
  bool lists_processes() const { return compute_processes_ != nullptr; }

 private:
  // The toolkit brings no nvml.h. Names, numbers and layouts from NVIDIA's "NVML API
  // Reference Guide": nvmlReturn_t is an enum with NVML_SUCCESS = 0, nvmlEnableState_t
  // one with NVML_FEATURE_ENABLED = 1, nvmlDevice_t an opaque pointer.
  // NVML_ERROR_INSUFFICIENT_SIZE = 7, NVML_VALUE_NOT_AVAILABLE = -1.
  using Return = int;
  struct Memory {  // nvmlMemory_t
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
  };
  struct Process {  // nvmlProcessInfo_t of the functions that end in _v3
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance;
    unsigned compute_instance;
  };
  using ListProcesses = Return(Device*, unsigned* count, Process*);

  Nvml() = default;
  static absl::StatusOr<const Nvml*> Load();
  absl::Status Error(Return result, const char* what) const;

  Return (*init_)() = nullptr;
  const char* (*error_string_)(Return) = nullptr;
  Return (*device_by_uuid_)(const char*, Device**) = nullptr;
  Return (*memory_info_)(Device*, Memory*) = nullptr;
  Return (*persistence_mode_)(Device*, int*) = nullptr;
  // Null if the driver is too old for them.
  Return (*driver_version_)(char*, unsigned) = nullptr;
  Return (*cuda_version_)(int*) = nullptr;
  ListProcesses* compute_processes_ = nullptr;
  ListProcesses* graphics_processes_ = nullptr;
  ListProcesses* mps_processes_ = nullptr;
};

}  // namespace gpumem
