// SPDX-License-Identifier: Apache-2.0
// cuMemAlloc() and its relatives.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "client/preload/accounting.h"
#include "client/preload/books.h"
#include "client/preload/brokered.h"
#include "client/preload/pool.h"

namespace gpumem::preload {
namespace {

template <typename Call, typename Address>
CUresult AllocateCharged(const Entry& entry, uint64_t bytes, Call call, Address address) {
  return AllocateRecorded(entry, &g_pointers, bytes, call, address);
}

// The pitch is the driver's choice: a multiple of 512 on all devices so far.
uint64_t PitchOf(uint64_t width) { return (width + 511) / 512 * 512; }

uint64_t PitchedSize(uint64_t width, uint64_t height) {
  uint64_t pitch = PitchOf(width);
  if (height != 0 && pitch > UINT64_MAX / height) return UINT64_MAX / 2;
  return pitch * height;
}

// cuMemAllocPitch() takes no others.
bool IsElementSize(unsigned int bytes) { return bytes == 4 || bytes == 8 || bytes == 16; }

template <typename Call>
CUresult FreeCharged(const Entry& entry, uint64_t address, Call call) {
  Record record;
  CUresult brokered;
  if (!entry.outermost) return call();
  if (FreeBrokered(entry, address, &brokered)) return brokered;
  if (g_pointers.Take(address, &record)) {
    CUresult result = call();
    if (result == CUDA_SUCCESS) {
      Refund(record.charge);
    } else {
      g_pointers.Put(address, record);
    }
    return result;
  }
  PoolBlock block;
  bool pooled = TakePoolBlock(address, &block);
  CUresult result = call();
  if (pooled && result == CUDA_SUCCESS) DropPoolBlock(block);
  if (pooled && result != CUDA_SUCCESS) PutPoolBlock(address, block);
  return result;
}

}  // namespace
}  // namespace gpumem::preload

using gpumem::preload::AllocateBrokered;
using gpumem::preload::AllocateCharged;
using gpumem::preload::ChargedSize;
using gpumem::preload::Entry;
using gpumem::preload::FreeCharged;
using gpumem::preload::IsElementSize;
using gpumem::preload::PitchedSize;
using gpumem::preload::PitchOf;

extern "C" {

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  Entry entry;
  CUresult brokered;
  uint64_t address = 0;
  if (dptr != nullptr && AllocateBrokered(entry, bytesize, &address, &brokered)) {
    if (brokered == CUDA_SUCCESS) *dptr = address;
    return brokered;
  }
  return AllocateCharged(
      entry, ChargedSize(bytesize), [&] { return entry.driver.cuMemAlloc_v2(dptr, bytesize); },
      [&] { return *dptr; });
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1* dptr, unsigned int bytesize) {
  Entry entry;
  return AllocateCharged(
      entry, ChargedSize(bytesize), [&] { return entry.driver.cuMemAlloc(dptr, bytesize); },
      [&] { return *dptr; });
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes,
                                    size_t Height, unsigned int ElementSizeBytes) {
  Entry entry;
  CUresult brokered;
  uint64_t address = 0;
  const bool valid = dptr != nullptr && pPitch != nullptr && IsElementSize(ElementSizeBytes);
  if (valid && AllocateBrokered(entry, PitchedSize(WidthInBytes, Height), &address, &brokered)) {
    if (brokered != CUDA_SUCCESS) return brokered;
    *dptr = address;
    *pPitch = PitchOf(WidthInBytes);
    return brokered;
  }
  return AllocateCharged(
      entry, ChargedSize(PitchedSize(WidthInBytes, Height)),
      [&] {
        return entry.driver.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height,
                                               ElementSizeBytes);
      },
      [&] { return *dptr; });
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1* dptr, unsigned int* pPitch,
                                 unsigned int WidthInBytes, unsigned int Height,
                                 unsigned int ElementSizeBytes) {
  Entry entry;
  return AllocateCharged(
      entry, ChargedSize(PitchedSize(WidthInBytes, Height)),
      [&] {
        return entry.driver.cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
      },
      [&] { return *dptr; });
}

// Charged as if it were on the device all the time: the driver moves it there when it is used.
CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  Entry entry;
  return AllocateCharged(
      entry, ChargedSize(bytesize),
      [&] { return entry.driver.cuMemAllocManaged(dptr, bytesize, flags); }, [&] { return *dptr; });
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr) {
  Entry entry;
  return FreeCharged(entry, dptr, [&] { return entry.driver.cuMemFree_v2(dptr); });
}

CUresult CUDAAPI cuMemFree(CUdeviceptr_v1 dptr) {
  Entry entry;
  return FreeCharged(entry, dptr, [&] { return entry.driver.cuMemFree(dptr); });
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
