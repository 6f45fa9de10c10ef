// SPDX-License-Identifier: Apache-2.0
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <string.h>

#include <atomic>

#include "client/preload/accounting.h"
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
  g_nvml_bound.store(true, std::memory_order_release);
  return &g_nvml;
}

template <typename Memory>
void LowerMemory(const Nvml& nvml, void* device, Memory* memory) {
  char text[96] = {};
  unsigned char uuid[16];
  uint64_t limit = 0;
  uint64_t left = 0;
  if (nvml.uuid == nullptr || nvml.uuid(device, text, sizeof(text)) != 0) return;
  if (!ParseUuid(text, &uuid) || !LimitOfUuid(uuid, &limit, &left)) return;
  if (limit < memory->total) memory->total = limit;
  if (left < memory->free) memory->free = left;
  if (memory->free > memory->total) memory->free = memory->total;
  memory->used = memory->total - memory->free;
}

}  // namespace

void* NvmlStubFor(void* address) {
  if (address == nullptr) return nullptr;
  const Nvml* nvml = LoadedNvml();
  if (nvml == nullptr) return address;
  if (address == reinterpret_cast<void*>(nvml->memory)) {
    return reinterpret_cast<void*>(&::nvmlDeviceGetMemoryInfo);
  }
  if (address == reinterpret_cast<void*>(nvml->memory_v2)) {
    return reinterpret_cast<void*>(&::nvmlDeviceGetMemoryInfo_v2);
  }
  return address;
}

void AbandonNvml() { g_nvml_mutex.Reset(); }

}  // namespace gpumem::preload

using gpumem::preload::kNotSupported;
using gpumem::preload::LoadedNvml;
using gpumem::preload::LowerMemory;
using gpumem::preload::Nvml;

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

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
