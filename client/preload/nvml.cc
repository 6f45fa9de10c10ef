// SPDX-License-Identifier: Apache-2.0
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "client/preload/accounting.h"
#include "client/preload/brokered.h"
#include "client/preload/elf.h"
#include "client/preload/lock.h"
#include "client/preload/nvml.h"
#include "client/preload/uuid.h"

namespace gpumem::preload {
namespace {

constexpr int kNotSupported = 3;  // NVML_ERROR_NOT_SUPPORTED

// The loaded NVML's functions. Bound once: programs do not unload it and load another one.
struct Nvml {
  int (*memory)(void*, GpumemNvmlMemory*);
  int (*memory_v2)(void*, GpumemNvmlMemoryV2*);
  int (*uuid)(void*, char*, unsigned int);
  int (*processes)(void*, unsigned int*, GpumemNvmlProcess*);
  int (*processes_v2)(void*, unsigned int*, GpumemNvmlProcessV2*);
  int (*processes_v3)(void*, unsigned int*, GpumemNvmlProcessV2*);
};

Nvml g_nvml;
Mutex g_nvml_mutex;
std::atomic<bool> g_nvml_bound{false};

template <typename Function>
void BindNvml(const LoadedObject& object, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(FindFunction(object, name));
}

// Returns null if NVML is not loaded.
const Nvml* LoadedNvml() {
  if (g_nvml_bound.load(std::memory_order_acquire)) return &g_nvml;
  MutexLock lock(&g_nvml_mutex);
  if (g_nvml_bound.load(std::memory_order_relaxed)) return &g_nvml;
  LoadedObject object;
  if (!FindLoadedObject("libnvidia-ml.so", &object)) return nullptr;
  BindNvml(object, "nvmlDeviceGetMemoryInfo", &g_nvml.memory);
  BindNvml(object, "nvmlDeviceGetMemoryInfo_v2", &g_nvml.memory_v2);
  BindNvml(object, "nvmlDeviceGetUUID", &g_nvml.uuid);
  BindNvml(object, "nvmlDeviceGetComputeRunningProcesses", &g_nvml.processes);
  BindNvml(object, "nvmlDeviceGetComputeRunningProcesses_v2", &g_nvml.processes_v2);
  BindNvml(object, "nvmlDeviceGetComputeRunningProcesses_v3", &g_nvml.processes_v3);
  g_nvml_bound.store(true, std::memory_order_release);
  return &g_nvml;
}

bool UuidOf(const Nvml& nvml, void* device, unsigned char (*uuid)[16]) {
  char text[96] = {};
  return nvml.uuid != nullptr && nvml.uuid(device, text, sizeof(text)) == 0 &&
         ParseUuid(text, uuid);
}

template <typename Memory>
void LowerMemory(const Nvml& nvml, void* device, Memory* memory) {
  unsigned char uuid[16];
  uint64_t limit = 0;
  uint64_t left = 0;
  if (!UuidOf(nvml, device, &uuid) || !LimitOfUuid(uuid, &limit, &left)) return;
  if (limit < memory->total) memory->total = limit;
  if (left < memory->free) memory->free = left;
  if (memory->free > memory->total) memory->free = memory->total;
  memory->used = memory->total - memory->free;
}

// Asks NVML for the processes, and adds to this one's memory what it has of gpumem's pool. In a PID
// namespace apart the process does not find itself.
template <typename Process>
int TellProcesses(int (*Nvml::*ask)(void*, unsigned int*, Process*), void* device,
                  unsigned int* count, Process* processes) {
  const Nvml* nvml = LoadedNvml();
  if (nvml == nullptr || nvml->*ask == nullptr) return kNotSupported;
  int result = (nvml->*ask)(device, count, processes);
  unsigned char uuid[16];
  if (result != 0 || processes == nullptr || !UuidOf(*nvml, device, &uuid)) return result;
  int in_use = DeviceInUse(uuid);
  uint64_t held = in_use < 0 ? 0 : HeldBrokered(in_use);
  for (unsigned int i = 0; i < *count; ++i) {
    if (processes[i].pid != static_cast<unsigned int>(getpid())) continue;
    if (processes[i].used != ~0ull) processes[i].used += held;
  }
  return result;
}

}  // namespace

void* NvmlStubFor(void* address) {
  if (address == nullptr) return nullptr;
  const Nvml* nvml = LoadedNvml();
  if (nvml == nullptr) return address;
  struct Pair {
    void* real;
    void* ours;
  };
  const Pair pairs[] = {
      {reinterpret_cast<void*>(nvml->memory), reinterpret_cast<void*>(&::nvmlDeviceGetMemoryInfo)},
      {reinterpret_cast<void*>(nvml->memory_v2),
       reinterpret_cast<void*>(&::nvmlDeviceGetMemoryInfo_v2)},
      {reinterpret_cast<void*>(nvml->processes),
       reinterpret_cast<void*>(&::nvmlDeviceGetComputeRunningProcesses)},
      {reinterpret_cast<void*>(nvml->processes_v2),
       reinterpret_cast<void*>(&::nvmlDeviceGetComputeRunningProcesses_v2)},
      {reinterpret_cast<void*>(nvml->processes_v3),
       reinterpret_cast<void*>(&::nvmlDeviceGetComputeRunningProcesses_v3)},
  };
  for (const Pair& pair : pairs) {
    if (address == pair.real) return pair.ours;
  }
  return address;
}

void AbandonNvml() { g_nvml_mutex.Reset(); }

}  // namespace gpumem::preload

using gpumem::preload::kNotSupported;
using gpumem::preload::LoadedNvml;
using gpumem::preload::LowerMemory;
using gpumem::preload::Nvml;
using gpumem::preload::TellProcesses;

extern "C" {

int nvmlDeviceGetMemoryInfo(void* device, GpumemNvmlMemory* memory) {
  const Nvml* nvml = LoadedNvml();
  if (nvml == nullptr || nvml->memory == nullptr) return kNotSupported;
  int result = nvml->memory(device, memory);
  if (result == 0) LowerMemory(*nvml, device, memory);
  return result;
}

int nvmlDeviceGetMemoryInfo_v2(void* device, GpumemNvmlMemoryV2* memory) {
  const Nvml* nvml = LoadedNvml();
  if (nvml == nullptr || nvml->memory_v2 == nullptr) return kNotSupported;
  int result = nvml->memory_v2(device, memory);
  if (result == 0) LowerMemory(*nvml, device, memory);
  return result;
}

int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned int* count,
                                         GpumemNvmlProcess* processes) {
  return TellProcesses(&Nvml::processes, device, count, processes);
}

int nvmlDeviceGetComputeRunningProcesses_v2(void* device, unsigned int* count,
                                            GpumemNvmlProcessV2* processes) {
  return TellProcesses(&Nvml::processes_v2, device, count, processes);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned int* count,
                                            GpumemNvmlProcessV2* processes) {
  return TellProcesses(&Nvml::processes_v3, device, count, processes);
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
