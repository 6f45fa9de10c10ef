// SPDX-License-Identifier: Apache-2.0
// What the driver tells of a pointer, and handles for other processes: for gpumem's memory, as it
// would for memory of cuMemAlloc().
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <string.h>

#include "client/preload/accounting.h"
#include "client/preload/books.h"
#include "client/preload/brokered.h"
#include "client/preload/brokered/pool.h"
#include "client/preload/brokered_memory.h"
#include "client/preload/gate.h"
#include "client/preload/pool.h"
#include "client/preload/vmm/brokered_vmm.h"

namespace gpumem::preload {
namespace {

static_assert(sizeof(GpumemIpcHandle) == sizeof(CUipcMemHandle));

template <typename Address, typename Size>
bool RangeOfBrokered(const Entry& entry, uint64_t address, Address* base, Size* size) {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  if (!entry.outermost || !FindBrokered(address, &begin, &bytes)) return false;
  if (base != nullptr) *base = static_cast<Address>(begin);
  if (size != nullptr) *size = static_cast<Size>(bytes);
  return true;
}

// The driver sees a mapping of physical memory, of which a block is a part. Corrects its answer.
void CorrectAttribute(const Entry& entry, CUdeviceptr address, CUpointer_attribute attribute,
                      void* data) {
  uint64_t base = 0;
  uint64_t bytes = 0;
  if (!entry.outermost || data == nullptr) return;
  int types = CU_MEM_HANDLE_TYPE_NONE;
  if (attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES && HandleTypesAt(address, &types)) {
    *static_cast<int*>(data) = types;
    return;
  }
  if (!FindBrokered(address, &base, &bytes)) return;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = base;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = bytes;
      break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<int*>(data) = IsStreamOrdered(base) ? 0 : 1;
      break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: {
      int device = -1;
      if (IsStreamOrdered(base) &&
          entry.driver.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                             address) == CUDA_SUCCESS) {
        *static_cast<CUmemoryPool*>(data) = DefaultPool(entry.driver, device);
      }
      break;
    }
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      if (IsStreamOrdered(base)) *static_cast<int*>(data) = CU_MEM_HANDLE_TYPE_NONE;
      break;
    case CU_POINTER_ATTRIBUTE_CONTEXT: {
      int device = -1;
      // Memory of a pool is of no context.
      if (!IsStreamOrdered(base) &&
          entry.driver.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                             address) == CUDA_SUCCESS) {
        *static_cast<CUcontext*>(data) = reinterpret_cast<CUcontext>(PrimaryOf(device));
      }
      break;
    }
    default:
      break;
  }
}

CUresult OpenHandle(const Entry& entry, CUdeviceptr* address, const CUipcMemHandle& handle,
                    CUresult (*call)(CUdeviceptr*, CUipcMemHandle, unsigned int),
                    unsigned int flags) {
  GpumemIpcHandle ours;
  memcpy(&ours, &handle, sizeof(ours));
  uint64_t context = 0;
  int device = -1;
  if (!entry.outermost || address == nullptr || !CurrentContext(entry.driver, &context, &device)) {
    return call(address, handle, flags);
  }
  // Before the process's first allocation: it may be the reader of another one's memory.
  CUresult result = EnsureContext(device);
  if (result != CUDA_SUCCESS) return result;
  GpumemBrokeredDevice* const user = BrokeredDevice(device);
  if (user == nullptr || Broker()->is_shared(&ours) == 0) return call(address, handle, flags);
  const GateHold hold;
  uint64_t opened = 0;
  if (Broker()->open(user, &ours, &opened) == 0) return CUDA_ERROR_INVALID_HANDLE;
  *address = opened;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace gpumem::preload

using gpumem::preload::Broker;
using gpumem::preload::CorrectAttribute;
using gpumem::preload::Entry;
using gpumem::preload::FindBrokered;
using gpumem::preload::GateHold;
using gpumem::preload::IsBrokered;
using gpumem::preload::OpenHandle;
using gpumem::preload::RangeOfBrokered;

extern "C" {

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  Entry entry;
  const GateHold hold;
  if (RangeOfBrokered(entry, dptr, pbase, psize)) return CUDA_SUCCESS;
  return entry.driver.cuMemGetAddressRange_v2(pbase, psize, dptr);
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr_v1* pbase, unsigned int* psize,
                                      CUdeviceptr_v1 dptr) {
  Entry entry;
  const GateHold hold;
  if (RangeOfBrokered(entry, dptr, pbase, psize)) return CUDA_SUCCESS;
  return entry.driver.cuMemGetAddressRange(pbase, psize, dptr);
}

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  Entry entry;
  const GateHold hold;
  CUresult result = entry.driver.cuPointerGetAttribute(data, attribute, ptr);
  if (result == CUDA_SUCCESS) CorrectAttribute(entry, ptr, attribute, data);
  return result;
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes,
                                        void** data, CUdeviceptr ptr) {
  Entry entry;
  const GateHold hold;
  CUresult result = entry.driver.cuPointerGetAttributes(numAttributes, attributes, data, ptr);
  if (result != CUDA_SUCCESS) return result;
  for (unsigned int i = 0; i < numAttributes; ++i) {
    CorrectAttribute(entry, ptr, attributes[i], data[i]);
  }
  return result;
}

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  Entry entry;
  CUdeviceptr base = 0;
  if (pHandle == nullptr || !RangeOfBrokered<CUdeviceptr, size_t>(entry, dptr, &base, nullptr)) {
    return entry.driver.cuIpcGetMemHandle(pHandle, dptr);
  }
  const GateHold hold;
  GpumemIpcHandle handle;
  // A block in several segments, a stream-ordered one, and memory of another process.
  if (Broker()->share(base, &handle) == 0) return CUDA_ERROR_INVALID_VALUE;
  memcpy(pHandle, &handle, sizeof(handle));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle,
                                       unsigned int Flags) {
  Entry entry;
  return OpenHandle(entry, pdptr, handle, entry.driver.cuIpcOpenMemHandle_v2, Flags);
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  Entry entry;
  return OpenHandle(entry, pdptr, handle, entry.driver.cuIpcOpenMemHandle, Flags);
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr dptr) {
  Entry entry;
  if (entry.outermost && IsBrokered()) {
    const GateHold hold;
    // As the driver does: work on the memory may be pending.
    uint64_t base = 0;
    uint64_t bytes = 0;
    if (FindBrokered(dptr, &base, &bytes)) {
      const CUresult result = entry.driver.cuCtxSynchronize();
      if (result != CUDA_SUCCESS) return result;
    }
    if (Broker()->close(dptr) != 0) return CUDA_SUCCESS;
  }
  return entry.driver.cuIpcCloseMemHandle(dptr);
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
