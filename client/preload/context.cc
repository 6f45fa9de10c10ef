// SPDX-License-Identifier: Apache-2.0
// Contexts: a device's first one is charged, and what was allocated in one goes with it.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "client/preload/accounting.h"
#include "client/preload/books.h"

namespace gpumem::preload {
namespace {

Mutex g_contexts_mutex;
HashMap<int> g_contexts;             // made by cuCtxCreate(), with their devices
int g_contexts_of[kMaxDevices];      // their number
uint64_t g_primary_of[kMaxDevices];  // the handles of primary contexts seen

bool Known(int device) { return device >= 0 && device < kMaxDevices; }

bool PrimaryIsActive(const Driver& driver, int device) {
  unsigned int flags = 0;
  int active = 0;
  return driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active != 0;
}

// Gives the charge of a device's contexts back when the last one has gone.
void RefundIfLast(const Driver& driver, int device) {
  if (!Known(device)) return;
  {
    MutexLock lock(&g_contexts_mutex);
    if (g_contexts_of[device] != 0) return;
  }
  if (!PrimaryIsActive(driver, device)) RefundContext(device);
}

template <typename Call>
CUresult CreateContext(const Entry& entry, CUcontext* context, int device, Call call) {
  if (!entry.outermost) return call();
  CUresult result = EnsureContext(device);
  if (result != CUDA_SUCCESS) return result;
  result = call();
  if (result != CUDA_SUCCESS) {
    RefundIfLast(entry.driver, device);
    return result;
  }
  if (!Known(device)) return result;
  MutexLock lock(&g_contexts_mutex);
  g_contexts.Put(reinterpret_cast<uint64_t>(*context), device);
  ++g_contexts_of[device];
  return result;
}

template <typename Call>
CUresult DestroyContext(const Entry& entry, CUcontext context, Call call) {
  if (!entry.outermost) return call();
  // The handle is taken first: another thread may get the same one for a new context.
  uint64_t key = reinterpret_cast<uint64_t>(context);
  int device = -1;
  bool known = false;
  if (key != 0) {
    MutexLock lock(&g_contexts_mutex);
    known = g_contexts.Take(key, &device);
  }
  CUresult result = call();
  if (!known) return result;
  {
    MutexLock lock(&g_contexts_mutex);
    if (result != CUDA_SUCCESS) {
      g_contexts.Put(key, device);
      return result;
    }
    --g_contexts_of[device];
  }
  ForgetContexts();
  g_pointers.RefundContext(key);
  g_arrays.RefundContext(key);
  RefundIfLast(entry.driver, device);
  return result;
}

// After a release or a reset of the primary context: its memory has gone if it is not active.
CUresult AfterPrimary(const Entry& entry, int device, CUresult result) {
  if (result != CUDA_SUCCESS || !entry.outermost || !Known(device)) return result;
  if (PrimaryIsActive(entry.driver, device)) return result;
  uint64_t primary = 0;
  {
    MutexLock lock(&g_contexts_mutex);
    primary = g_primary_of[device];
  }
  ForgetContexts();
  if (primary != 0) {
    g_pointers.RefundContext(primary);
    g_arrays.RefundContext(primary);
  }
  {
    MutexLock lock(&g_contexts_mutex);
    if (g_contexts_of[device] != 0) return result;
  }
  DropPools(device);
  SettleGraphs(device);
  RefundContext(device);
  return result;
}

}  // namespace

void AbandonContexts() {
  g_contexts_mutex.Reset();
  g_contexts.Abandon();
  for (int& count : g_contexts_of) count = 0;
  for (uint64_t& primary : g_primary_of) primary = 0;
}

}  // namespace gpumem::preload

using gpumem::preload::AfterPrimary;
using gpumem::preload::CreateContext;
using gpumem::preload::DestroyContext;
using gpumem::preload::Entry;

extern "C" {

CUresult CUDAAPI cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  Entry entry;
  return CreateContext(entry, pctx, dev,
                       [&] { return entry.driver.cuCtxCreate(pctx, flags, dev); });
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  Entry entry;
  return CreateContext(entry, pctx, dev,
                       [&] { return entry.driver.cuCtxCreate_v2(pctx, flags, dev); });
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams,
                                unsigned int flags, CUdevice dev) {
  Entry entry;
  return CreateContext(entry, pctx, dev, [&] {
    return entry.driver.cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev);
  });
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams,
                                unsigned int flags, CUdevice dev) {
  Entry entry;
  return CreateContext(entry, pctx, dev, [&] {
    return entry.driver.cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev);
  });
}

CUresult CUDAAPI cuCtxDestroy(CUcontext ctx) {
  Entry entry;
  return DestroyContext(entry, ctx, [&] { return entry.driver.cuCtxDestroy(ctx); });
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx) {
  Entry entry;
  return DestroyContext(entry, ctx, [&] { return entry.driver.cuCtxDestroy_v2(ctx); });
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  Entry entry;
  if (!entry.outermost) return entry.driver.cuDevicePrimaryCtxRetain(pctx, dev);
  CUresult result = gpumem::preload::EnsureContext(dev);
  if (result != CUDA_SUCCESS) return result;
  result = entry.driver.cuDevicePrimaryCtxRetain(pctx, dev);
  if (result != CUDA_SUCCESS) {
    gpumem::preload::RefundIfLast(entry.driver, dev);
  } else if (gpumem::preload::Known(dev)) {
    gpumem::preload::MutexLock lock(&gpumem::preload::g_contexts_mutex);
    gpumem::preload::g_primary_of[dev] = reinterpret_cast<uint64_t>(*pctx);
  }
  return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev) {
  Entry entry;
  return AfterPrimary(entry, dev, entry.driver.cuDevicePrimaryCtxRelease(dev));
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  Entry entry;
  return AfterPrimary(entry, dev, entry.driver.cuDevicePrimaryCtxRelease_v2(dev));
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev) {
  Entry entry;
  return AfterPrimary(entry, dev, entry.driver.cuDevicePrimaryCtxReset(dev));
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  Entry entry;
  return AfterPrimary(entry, dev, entry.driver.cuDevicePrimaryCtxReset_v2(dev));
}

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev,
                                  unsigned int flags) {
  Entry entry;
  if (entry.outermost) {
    CUresult result = gpumem::preload::EnsureContext(dev);
    if (result != CUDA_SUCCESS) return result;
  }
  return entry.driver.cuGreenCtxCreate(phCtx, desc, dev, flags);
}

// What was allocated in it belongs to the primary context.
CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx hCtx) {
  Entry entry;
  CUresult result = entry.driver.cuGreenCtxDestroy(hCtx);
  gpumem::preload::ForgetContexts();
  return result;
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
