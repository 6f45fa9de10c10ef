// NVML (libnvidia-ml), loaded at run time: what the CUDA driver cannot say without a
// context. The only place in the project that loads it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace gpumem {

// Immutable and thread-safe; so is NVML.
class Nvml {
 public:
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  struct Device;  // NVML's, opaque; valid as long as the process

  // Loaded and initialised by the first call, then for good.
  //   UNAVAILABLE  no library, or it does not work here; the sentence says which
  static absl::StatusOr<const Nvml*> Get();

  // By UUID, as in "GPU-…"; NVML knows nothing of CUDA_VISIBLE_DEVICES.
  //   UNAVAILABLE  NVML does not know it or does not say
  absl::StatusOr<Device*> FindDevice(const std::string& uuid) const;

  // Memory that nobody uses, by the driver's count.
  //   UNAVAILABLE  NVML does not say
  absl::StatusOr<uint64_t> FreeBytes(Device* device) const;

  // Whether the driver keeps the GPU's state while no process uses it.
  //   UNAVAILABLE  NVML does not say
  absl::StatusOr<bool> PersistenceMode(Device* device) const;

 private:
  // The toolkit brings no nvml.h. Names, numbers and layouts from NVIDIA's "NVML API
  // Reference Guide": nvmlReturn_t is an enum with NVML_SUCCESS = 0, nvmlEnableState_t
  // one with NVML_FEATURE_ENABLED = 1, nvmlDevice_t an opaque pointer.
  using Return = int;
  struct Memory {  // nvmlMemory_t
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
  };

  Nvml() = default;
  static absl::StatusOr<const Nvml*> Load();
  absl::Status Error(Return result, const char* what) const;

  Return (*init_)() = nullptr;
  const char* (*error_string_)(Return) = nullptr;
  Return (*device_by_uuid_)(const char*, Device**) = nullptr;
  Return (*memory_info_)(Device*, Memory*) = nullptr;
  Return (*persistence_mode_)(Device*, int*) = nullptr;
};

}  // namespace gpumem
