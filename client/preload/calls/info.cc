// SPDX-License-Identifier: Apache-2.0
// What programs are told of a device's memory: the tenant's limit, and what of it is left.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "client/preload/accounting.h"
#include "client/preload/books.h"

namespace gpumem::preload {
namespace {

// Lowers the driver's figures to the tenant's.
template <typename Size>
void LowerFree(const Entry& entry, Size* free_bytes, Size* total) {
  uint64_t context = 0;
  int device = -1;
  uint64_t limit = 0;
  uint64_t left = 0;
  if (!entry.outermost || !CurrentContext(entry.driver, &context, &device)) return;
  SettleBooks(device);
  if (!LimitOf(device, &limit, &left)) return;
  if (total != nullptr && limit < *total) *total = static_cast<Size>(limit);
  if (free_bytes != nullptr && left < *free_bytes) *free_bytes = static_cast<Size>(left);
}

template <typename Size>
void LowerTotal(const Entry& entry, int device, Size* bytes) {
  uint64_t limit = 0;
  uint64_t left = 0;
  if (!entry.outermost || !LimitOf(device, &limit, &left)) return;
  if (limit < *bytes) *bytes = static_cast<Size>(limit);
}

}  // namespace
}  // namespace gpumem::preload

using gpumem::preload::Entry;
using gpumem::preload::LowerFree;
using gpumem::preload::LowerTotal;

extern "C" {

CUresult CUDAAPI cuMemGetInfo_v2(size_t* free, size_t* total) {
  Entry entry;
  CUresult result = entry.driver.cuMemGetInfo_v2(free, total);
  if (result == CUDA_SUCCESS) LowerFree(entry, free, total);
  return result;
}

CUresult CUDAAPI cuMemGetInfo(unsigned int* free, unsigned int* total) {
  Entry entry;
  CUresult result = entry.driver.cuMemGetInfo(free, total);
  if (result == CUDA_SUCCESS) LowerFree(entry, free, total);
  return result;
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  Entry entry;
  CUresult result = entry.driver.cuDeviceTotalMem_v2(bytes, dev);
  if (result == CUDA_SUCCESS) LowerTotal(entry, dev, bytes);
  return result;
}

CUresult CUDAAPI cuDeviceTotalMem(unsigned int* bytes, CUdevice dev) {
  Entry entry;
  CUresult result = entry.driver.cuDeviceTotalMem(bytes, dev);
  if (result == CUDA_SUCCESS) LowerTotal(entry, dev, bytes);
  return result;
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
