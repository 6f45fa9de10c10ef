// SPDX-License-Identifier: Apache-2.0
// cuMemCreate() and what keeps its memory alive: handles, mappings, sparse arrays.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <stdlib.h>

#include "client/preload/accounting.h"
#include "client/preload/books.h"
#include "client/preload/brokered.h"
#include "client/preload/gate.h"
#include "client/preload/vmm/brokered_vmm.h"
#include "client/preload/vmm/ranges.h"

namespace gpumem::preload {
namespace {

// Memory of one cuMemCreate(). Stays charged until no handle, mapping or array has it: the driver
// frees it then.
struct Physical {
  Charge charge;
  uint64_t handles;
  uint64_t uses;  // mappings and bindings to arrays
};

struct Mapping {
  uint64_t address;
  uint64_t size;
  Physical* physical;
};

struct Binding {
  CUarrayMapInfo place;
  Physical* physical;
};

Mutex g_vmm_mutex;
HashMap<Physical*> g_handles;
Ranges<Mapping> g_mappings;
List<Binding> g_bindings;

// Requires g_vmm_mutex.
void FreeIfUnused(Physical* physical) {
  if (physical->handles != 0 || physical->uses != 0) return;
  Refund(physical->charge);
  free(physical);
}

void RememberMapping(uint64_t address, uint64_t size, uint64_t handle) {
  MutexLock lock(&g_vmm_mutex);
  Physical** physical = g_handles.Get(handle);
  // Not ours: imported, in which case the exporter is charged, or in host memory.
  if (physical == nullptr) return;
  ++(*physical)->uses;
  g_mappings.Add({address, size, *physical});  // without room for it the memory stays charged
}

void ForgetMappings(uint64_t address, uint64_t size) {
  MutexLock lock(&g_vmm_mutex);
  g_mappings.Remove(address, size, [](const Mapping& mapping) {
    --mapping.physical->uses;
    FreeIfUnused(mapping.physical);
  });
}

uint64_t ArrayOf(const CUarrayMapInfo& place) {
  return reinterpret_cast<uint64_t>(place.resourceType == CU_RESOURCE_TYPE_ARRAY
                                        ? static_cast<void*>(place.resource.array)
                                        : static_cast<void*>(place.resource.mipmap));
}

bool Within(uint64_t inner, uint64_t inner_size, uint64_t outer, uint64_t outer_size) {
  return inner >= outer && inner + inner_size <= outer + outer_size;
}

// True if a part of an array is a part of another one.
bool Covers(const CUarrayMapInfo& outer, const CUarrayMapInfo& inner) {
  if (ArrayOf(outer) != ArrayOf(inner) || outer.subresourceType != inner.subresourceType) {
    return false;
  }
  if (outer.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    const auto& of = outer.subresource.miptail;
    const auto& part = inner.subresource.miptail;
    return of.layer == part.layer && Within(part.offset, part.size, of.offset, of.size);
  }
  const auto& of = outer.subresource.sparseLevel;
  const auto& part = inner.subresource.sparseLevel;
  return of.level == part.level && of.layer == part.layer &&
         Within(part.offsetX, part.extentWidth, of.offsetX, of.extentWidth) &&
         Within(part.offsetY, part.extentHeight, of.offsetY, of.extentHeight) &&
         Within(part.offsetZ, part.extentDepth, of.offsetZ, of.extentDepth);
}

// Requires g_vmm_mutex. Ends the bindings for which `gone(place)` is true.
template <typename Gone>
void Unbind(Gone gone) {
  for (size_t i = g_bindings.count; i-- > 0;) {
    if (!gone(g_bindings.items[i].place)) continue;
    Physical* physical = g_bindings.items[i].physical;
    g_bindings.items[i] = g_bindings.items[--g_bindings.count];
    --physical->uses;
    FreeIfUnused(physical);
  }
}

// A part that is mapped, or unmapped, ends what was mapped within it. What was mapped as a larger
// part stays until the array is destroyed.
void RememberBindings(const CUarrayMapInfo* list, unsigned int count) {
  MutexLock lock(&g_vmm_mutex);
  for (unsigned int i = 0; i < count; ++i) {
    const CUarrayMapInfo& info = list[i];
    Physical** physical = info.memOperationType == CU_MEM_OPERATION_TYPE_MAP
                              ? g_handles.Get(info.memHandle.memHandle)
                              : nullptr;
    if (physical != nullptr) ++(*physical)->uses;
    Unbind([&](const CUarrayMapInfo& place) { return Covers(info, place); });
    if (physical != nullptr && g_bindings.MakeRoom()) {
      g_bindings.items[g_bindings.count++] = {info, *physical};
    }
  }
}

// True if memory of gpumem is to be bound. It is not made for that: the driver would refuse it.
bool BindsTokens(const CUarrayMapInfo* list, unsigned int count) {
  for (unsigned int i = 0; list != nullptr && i < count; ++i) {
    if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP &&
        IsToken(list[i].memHandle.memHandle)) {
      return true;
    }
  }
  return false;
}

}  // namespace

void UnbindArray(uint64_t array) {
  MutexLock lock(&g_vmm_mutex);
  Unbind([&](const CUarrayMapInfo& place) { return ArrayOf(place) == array; });
}

void AbandonVmm() {
  g_vmm_mutex.Reset();
  g_handles.Abandon();
  g_mappings = {};
  g_bindings = {};
}

}  // namespace gpumem::preload

using gpumem::preload::BindsTokens;
using gpumem::preload::Charge;
using gpumem::preload::Entry;
using gpumem::preload::FreeIfUnused;
using gpumem::preload::g_handles;
using gpumem::preload::g_vmm_mutex;
using gpumem::preload::GateHold;
using gpumem::preload::IsToken;
using gpumem::preload::MutexLock;
using gpumem::preload::Physical;

extern "C" {

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                             const CUmemAllocationProp* prop, unsigned long long flags) {
  Entry entry;
  // Host memory, of NUMA nodes too, is not the device's.
  if (!entry.outermost || prop == nullptr || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return entry.driver.cuMemCreate(handle, size, prop, flags);
  }
  CUresult result;
  if (gpumem::preload::CreatePhysical(entry, handle, size, prop, flags, &result)) return result;
  Charge charge;
  result = gpumem::preload::Reserve(prop->location.id, size, &charge);
  if (result != CUDA_SUCCESS) return result;
  Physical* physical = static_cast<Physical*>(malloc(sizeof(Physical)));
  result = physical == nullptr ? CUDA_ERROR_OUT_OF_MEMORY
                               : entry.driver.cuMemCreate(handle, size, prop, flags);
  if (result != CUDA_SUCCESS) {
    gpumem::preload::Refund(charge);
    free(physical);
    return result;
  }
  *physical = {charge, 1, 0};
  MutexLock lock(&g_vmm_mutex);
  g_handles.Put(*handle, physical);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  Entry entry;
  if (IsToken(handle)) return gpumem::preload::ReleasePhysical(handle);
  if (!entry.outermost) return entry.driver.cuMemRelease(handle);
  // With the lock held, because the driver may give the handle's value to another thread at once.
  MutexLock lock(&g_vmm_mutex);
  CUresult result = entry.driver.cuMemRelease(handle);
  Physical** found = g_handles.Get(handle);
  if (result != CUDA_SUCCESS || found == nullptr) return result;
  Physical* physical = *found;
  if (--physical->handles == 0) g_handles.Take(handle, &physical);
  FreeIfUnused(physical);
  return result;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  Entry entry;
  if (IsToken(handle)) {
    return gpumem::preload::MapPhysical(entry.driver, ptr, size, offset, handle, flags);
  }
  CUresult result = entry.driver.cuMemMap(ptr, size, offset, handle, flags);
  if (result == CUDA_SUCCESS && entry.outermost) {
    gpumem::preload::RememberMapping(ptr, size, handle);
  }
  return result;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size) {
  Entry entry;
  const GateHold hold;
  CUresult result = entry.driver.cuMemUnmap(ptr, size);
  if (result != CUDA_SUCCESS || !entry.outermost) return result;
  gpumem::preload::ForgetMappings(ptr, size);
  gpumem::preload::ForgetPhysicalMappings(ptr, size);
  return result;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  Entry entry;
  if (entry.outermost && handle != nullptr &&
      gpumem::preload::RetainPhysical(reinterpret_cast<uint64_t>(addr), handle)) {
    return CUDA_SUCCESS;
  }
  // The driver knows it as a mapping. The program does not.
  if (entry.outermost && gpumem::preload::IsInBrokered(reinterpret_cast<uint64_t>(addr))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult result = entry.driver.cuMemRetainAllocationHandle(handle, addr);
  if (result != CUDA_SUCCESS || !entry.outermost) return result;
  MutexLock lock(&g_vmm_mutex);
  const auto* const mapping = gpumem::preload::g_mappings.At(reinterpret_cast<uint64_t>(addr));
  if (mapping == nullptr) return result;
  ++mapping->physical->handles;
  g_handles.Put(*handle, mapping->physical);
  return result;
}

CUresult CUDAAPI cuMemMapArrayAsync(CUarrayMapInfo* mapInfoList, unsigned int count,
                                    CUstream hStream) {
  Entry entry;
  if (BindsTokens(mapInfoList, count)) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = entry.driver.cuMemMapArrayAsync(mapInfoList, count, hStream);
  if (result == CUDA_SUCCESS && entry.outermost) {
    gpumem::preload::RememberBindings(mapInfoList, count);
  }
  return result;
}

CUresult CUDAAPI cuMemMapArrayAsync_ptsz(CUarrayMapInfo* mapInfoList, unsigned int count,
                                         CUstream hStream) {
  Entry entry;
  if (BindsTokens(mapInfoList, count)) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = entry.driver.cuMemMapArrayAsync_ptsz(mapInfoList, count, hStream);
  if (result == CUDA_SUCCESS && entry.outermost) {
    gpumem::preload::RememberBindings(mapInfoList, count);
  }
  return result;
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
