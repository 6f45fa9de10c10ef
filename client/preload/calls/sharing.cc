// SPDX-License-Identifier: Apache-2.0
// Access to mappings of cuMemMap(), and what hands physical memory to others. gpumem's memory of
// cuMemCreate() is pinned then (brokered_vmm.h). Its blocks of cuMemAlloc() move, and the daemon
// may give their memory to others, so they are not handed out.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "client/preload/brokered.h"
#include "client/preload/driver.h"
#include "client/preload/gate.h"
#include "client/preload/vmm/brokered_vmm.h"

using gpumem::preload::Entry;
using gpumem::preload::GateHold;
using gpumem::preload::IsToken;

extern "C" {

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc,
                                size_t count) {
  Entry entry;
  const GateHold hold;
  CUresult result = entry.driver.cuMemSetAccess(ptr, size, desc, count);
  if (result == CUDA_SUCCESS && entry.outermost) {
    gpumem::preload::NoteAccess(ptr, size, desc, count);
  }
  return result;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                        CUmemGenericAllocationHandle handle) {
  Entry entry;
  if (IsToken(handle)) return gpumem::preload::PropertiesOfPhysical(prop, handle);
  return entry.driver.cuMemGetAllocationPropertiesFromHandle(prop, handle);
}

CUresult CUDAAPI cuMemExportToShareableHandle(void* shareableHandle,
                                              CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType handleType,
                                              unsigned long long flags) {
  Entry entry;
  if (IsToken(handle)) {
    return gpumem::preload::ExportPhysical(static_cast<int*>(shareableHandle), handle, handleType,
                                           flags);
  }
  return entry.driver.cuMemExportToShareableHandle(shareableHandle, handle, handleType, flags);
}

// A dma-buf, for example.
CUresult CUDAAPI cuMemGetHandleForAddressRange(void* handle, CUdeviceptr dptr, size_t size,
                                               CUmemRangeHandleType handleType,
                                               unsigned long long flags) {
  Entry entry;
  const GateHold hold;
  if (entry.outermost && gpumem::preload::IsInBrokered(dptr)) return CUDA_ERROR_NOT_SUPPORTED;
  if (entry.outermost) gpumem::preload::PinMappings(dptr, size);
  return entry.driver.cuMemGetHandleForAddressRange(handle, dptr, size, handleType, flags);
}

CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                                    CUmemGenericAllocationHandle memHandle, size_t memOffset,
                                    size_t size, unsigned long long flags) {
  Entry entry;
  const GateHold hold;
  CUmemGenericAllocationHandle own = memHandle;
  if (IsToken(memHandle)) {
    gpumem::preload::PinPhysical(memHandle);
    CUresult result = gpumem::preload::DriverHandle(entry.driver, memHandle, &own);
    if (result != CUDA_SUCCESS) return result;
  }
  CUresult result =
      entry.driver.cuMulticastBindMem(mcHandle, mcOffset, own, memOffset, size, flags);
  if (IsToken(memHandle)) entry.driver.cuMemRelease(own);
  return result;
}

CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                                     CUdeviceptr memptr, size_t size, unsigned long long flags) {
  Entry entry;
  const GateHold hold;
  // As the driver does for memory of cuMemAlloc().
  if (entry.outermost && gpumem::preload::IsInBrokered(memptr)) return CUDA_ERROR_INVALID_VALUE;
  if (entry.outermost) gpumem::preload::PinMappings(memptr, size);
  return entry.driver.cuMulticastBindAddr(mcHandle, mcOffset, memptr, size, flags);
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
