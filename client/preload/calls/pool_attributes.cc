// SPDX-License-Identifier: Apache-2.0
// What the driver tells of memory pools, and what programs set: gpumem's part of a default pool
// included.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "client/preload/brokered.h"
#include "client/preload/brokered/pool.h"

using gpumem::preload::Entry;
using gpumem::preload::IsBrokered;

extern "C" {

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  Entry entry;
  CUresult result = entry.driver.cuMemPoolGetAttribute(pool, attr, value);
  if (result == CUDA_SUCCESS && entry.outermost && IsBrokered()) {
    gpumem::preload::AddToAttribute(entry.driver, pool, attr, value);
  }
  return result;
}

// The driver's pool keeps the values: gpumem's part of it follows the flags of reuse, and keeps
// freed memory whatever the threshold is.
CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  Entry entry;
  CUresult result = entry.driver.cuMemPoolSetAttribute(pool, attr, value);
  if (result == CUDA_SUCCESS && entry.outermost && IsBrokered()) {
    gpumem::preload::NotePoolAttribute(entry.driver, pool, attr);
  }
  return result;
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
