// SPDX-License-Identifier: Apache-2.0
// Contexts: a device's first one is charged, and what was allocated in one goes with it.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <atomic>

#include "client/preload/accounting.h"
#include "client/preload/books.h"
#include "client/preload/brokered.h"
#include "client/preload/brokered/pool.h"
#include "client/preload/calls/late_frees.h"

namespace gpumem::preload {
namespace {

// A context that the program has made, and not the driver for the device.
struct OwnContext {
  int device;
  int references;  // cuCtxAttach() and cuCtxDetach(), which count; cuCtxDestroy() does not
};

Mutex g_contexts_mutex;
HashMap<OwnContext> g_contexts;
int g_contexts_of[kMaxDevices];  // their number
// The handles of primary contexts seen, and how often the program holds them.
std::atomic<uint64_t> g_primary_of[kMaxDevices];
std::atomic<int> g_primary_holds[kMaxDevices];

std::atomic<uint32_t> g_context_generation{1};

// Held while a context of the device is made, or goes and is refunded. Else another thread could
// make one in between, and what it allocates there would be refunded.
Mutex g_changing[kMaxDevices];

bool Known(int device) { return device >= 0 && device < kMaxDevices; }

bool PrimaryIsActive(const Driver& driver, int device) {
  unsigned int flags = 0;
  int active = 0;
  return driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active != 0;
}

// Refunds what was allocated in the contexts of a device for which `gone` is true.
template <typename Gone>
void RefundAllocations(int device, Gone gone) {
  auto matches = [&](const Record& record) {
    return record.charge.device == device && gone(record.context);
  };
  g_pointers.RefundIf([&](uint64_t, const Record& record) { return matches(record); });
  g_arrays.RefundIf([&](uint64_t array, const Record& record) {
    if (!matches(record)) return false;
    UnbindArray(array);
    return true;
  });
  RefundFreesIf(gone);
}

// Requires g_changing. If a device's last context has gone, refunds what belonged to none of them.
void RefundIfLast(const Driver& driver, int device) {
  {
    MutexLock lock(&g_contexts_mutex);
    if (g_contexts_of[device] != 0) return;
  }
  if (PrimaryIsActive(driver, device)) return;
  DropPools(device);
  SettleGraphs(device);
  RefundContext(device);
}

// Makes a context, or takes another reference to one, by `call`.
template <typename Call>
CUresult MakeContext(const Entry& entry, int device, Call call) {
  if (!entry.outermost || !Known(device)) return call();
  // Here it may wait for memory, also for that of a context that is about to go.
  CUresult result = EnsureContext(device);
  if (result != CUDA_SUCCESS) return result;
  MutexLock lock(&g_changing[device]);
  result = EnsureContext(device);
  if (result != CUDA_SUCCESS) return result;
  result = call();
  if (result != CUDA_SUCCESS) RefundIfLast(entry.driver, device);
  return result;
}

template <typename Call>
CUresult CreateContext(const Entry& entry, CUcontext* context, int device, Call call) {
  return MakeContext(entry, device, [&] {
    CUresult result = call();
    if (result != CUDA_SUCCESS || !entry.outermost || !Known(device)) return result;
    MutexLock lock(&g_contexts_mutex);
    g_contexts.Put(reinterpret_cast<uint64_t>(*context), {device, 1});
    ++g_contexts_of[device];
    return result;
  });
}

bool FindContext(uint64_t context, OwnContext* found) {
  MutexLock lock(&g_contexts_mutex);
  const OwnContext* own = context == 0 ? nullptr : g_contexts.Get(context);
  if (own != nullptr) *found = *own;
  return own != nullptr;
}

template <typename Call>
CUresult DestroyContext(const Entry& entry, CUcontext context, Call call) {
  uint64_t key = reinterpret_cast<uint64_t>(context);
  OwnContext own;
  if (!entry.outermost || !FindContext(key, &own)) return call();
  MutexLock changing(&g_changing[own.device]);
  {
    // The handle is taken first: another thread may get the same one for a new context.
    MutexLock lock(&g_contexts_mutex);
    if (g_contexts.Take(key, &own)) --g_contexts_of[own.device];
  }
  CUresult result = call();
  if (result != CUDA_SUCCESS) {
    MutexLock lock(&g_contexts_mutex);
    g_contexts.Put(key, own);
    ++g_contexts_of[own.device];
    return result;
  }
  ForgetContexts();
  RefundAllocations(own.device, [&](uint64_t of) { return of == key; });
  RefundIfLast(entry.driver, own.device);
  return result;
}

// Adds a reference to a context, or takes one which is not the last away.
void CountReference(CUcontext context, int more) {
  MutexLock lock(&g_contexts_mutex);
  OwnContext* own = g_contexts.Get(reinterpret_cast<uint64_t>(context));
  if (own != nullptr) own->references += more;
}

// Retains the primary context by `call`.
template <typename Call>
CUresult RetainPrimary(const Entry& entry, CUcontext* context, int device, Call call) {
  return MakeContext(entry, device, [&] {
    CUresult result = call();
    if (result != CUDA_SUCCESS || !entry.outermost || !Known(device)) return result;
    g_primary_of[device] = reinterpret_cast<uint64_t>(*context);
    ++g_primary_holds[device];
    return result;
  });
}

// Requires g_changing. If the primary context has gone, so has its memory, and that of green
// contexts, which are parts of it.
void RefundPrimary(const Driver& driver, int device) {
  if (PrimaryIsActive(driver, device)) return;
  ForgetContexts();
  RefundAllocations(device, [](uint64_t of) {
    OwnContext own;
    return !FindContext(of, &own);
  });
  RefundIfLast(driver, device);
}

// Releases or resets the primary context by `call`.
template <typename Call>
CUresult EndPrimary(const Entry& entry, int device, bool reset, Call call) {
  if (!entry.outermost || !Known(device)) return call();
  MutexLock lock(&g_changing[device]);
  // gpumem's pool holds the context, too. It has to go with the program's last hold.
  const bool last = !reset && g_primary_holds[device] > 0 && --g_primary_holds[device] == 0;
  if (reset || last) DropBrokered(device, /*may_wait=*/reset);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) RefundPrimary(entry.driver, device);
  return result;
}

}  // namespace

CUresult SynchronizeContexts(const Driver& driver) {
  // A capture in another thread would forbid it.
  const RelaxedCapture relaxed(driver);
  CUresult first = CUDA_SUCCESS;
  const auto synchronize = [&](CUcontext context) {
    CUcontext popped = nullptr;
    CUresult result = driver.cuCtxPushCurrent_v2(context);
    if (result == CUDA_SUCCESS) {
      result = driver.cuCtxSynchronize();
      driver.cuCtxPopCurrent_v2(&popped);
    }
    if (first == CUDA_SUCCESS) first = result;
  };
  for (int device = 0; device < DeviceCount(); ++device) {
    unsigned int flags = 0;
    int active = 0;
    CUcontext primary = nullptr;
    if (driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active == 0 ||
        driver.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS) {
      continue;
    }
    synchronize(primary);
    MutexLock lock(&g_changing[device]);
    // The program may have released it meanwhile.
    if (driver.cuDevicePrimaryCtxRelease_v2(device) == CUDA_SUCCESS) RefundPrimary(driver, device);
  }
  MutexLock lock(&g_contexts_mutex);
  g_contexts.ForEach(
      [&](uint64_t context, OwnContext) { synchronize(reinterpret_cast<CUcontext>(context)); });
  return first;
}

bool CurrentContext(const Driver& driver, uint64_t* context, int* device) {
  CUcontext current = nullptr;
  if (driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == nullptr) return false;
  *context = reinterpret_cast<uint64_t>(current);
  // The last context of this thread; asking for its device costs as much as all the rest.
  static thread_local uint64_t last_context = 0;
  static thread_local int last_device = 0;
  static thread_local uint32_t last_generation = 0;
  uint32_t generation = g_context_generation.load(std::memory_order_acquire);
  if (last_context != *context || last_generation != generation) {
    CUdevice found = 0;
    if (driver.cuCtxGetDevice(&found) != CUDA_SUCCESS) return false;
    last_context = *context;
    last_device = found;
    last_generation = generation;
  }
  *device = last_device;
  return true;
}

void ForgetContexts() {
  g_context_generation.fetch_add(1, std::memory_order_acq_rel);
  ForgetStreamContexts();
}

uint64_t PrimaryOf(int device) {
  return Known(device) ? g_primary_of[device].load(std::memory_order_relaxed) : 0;
}

void AbandonContexts() {
  g_contexts_mutex.Reset();
  for (Mutex& mutex : g_changing) mutex.Reset();
  g_contexts.Abandon();
  for (int& count : g_contexts_of) count = 0;
  for (std::atomic<uint64_t>& primary : g_primary_of) primary = 0;
  for (std::atomic<int>& holds : g_primary_holds) holds = 0;
}

}  // namespace gpumem::preload

using gpumem::preload::CreateContext;
using gpumem::preload::DestroyContext;
using gpumem::preload::EndPrimary;
using gpumem::preload::Entry;
using gpumem::preload::MakeContext;
using gpumem::preload::RetainPrimary;

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

CUresult CUDAAPI cuCtxAttach(CUcontext* pctx, unsigned int flags) {
  Entry entry;
  CUresult result = entry.driver.cuCtxAttach(pctx, flags);
  if (result == CUDA_SUCCESS && entry.outermost) gpumem::preload::CountReference(*pctx, 1);
  return result;
}

CUresult CUDAAPI cuCtxDetach(CUcontext ctx) {
  Entry entry;
  auto call = [&] { return entry.driver.cuCtxDetach(ctx); };
  gpumem::preload::OwnContext own;
  if (!gpumem::preload::FindContext(reinterpret_cast<uint64_t>(ctx), &own) || own.references == 1) {
    return DestroyContext(entry, ctx, call);
  }
  CUresult result = call();
  if (result == CUDA_SUCCESS && entry.outermost) gpumem::preload::CountReference(ctx, -1);
  return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  Entry entry;
  return RetainPrimary(entry, pctx, dev,
                       [&] { return entry.driver.cuDevicePrimaryCtxRetain(pctx, dev); });
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev) {
  Entry entry;
  return EndPrimary(entry, dev, /*reset=*/false,
                    [&] { return entry.driver.cuDevicePrimaryCtxRelease(dev); });
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  Entry entry;
  return EndPrimary(entry, dev, /*reset=*/false,
                    [&] { return entry.driver.cuDevicePrimaryCtxRelease_v2(dev); });
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev) {
  Entry entry;
  return EndPrimary(entry, dev, /*reset=*/true,
                    [&] { return entry.driver.cuDevicePrimaryCtxReset(dev); });
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  Entry entry;
  return EndPrimary(entry, dev, /*reset=*/true,
                    [&] { return entry.driver.cuDevicePrimaryCtxReset_v2(dev); });
}

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev,
                                  unsigned int flags) {
  Entry entry;
  return MakeContext(entry, dev,
                     [&] { return entry.driver.cuGreenCtxCreate(phCtx, desc, dev, flags); });
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
