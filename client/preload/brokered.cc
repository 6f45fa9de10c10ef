// SPDX-License-Identifier: Apache-2.0
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <atomic>

#include "client/preload/accounting.h"
#include "client/preload/books.h"
#include "client/preload/brokered.h"
#include "client/preload/brokered/pool.h"
#include "client/preload/brokered_memory.h"
#include "client/preload/gate.h"
#include "client/preload/hash_map.h"
#include "client/preload/lock.h"

namespace gpumem::preload {
namespace {

std::atomic<int> g_captures{0};
Mutex g_deferred_mutex;
HashMap<bool> g_deferred;  // blocks to be freed when no stream is being captured
HashMap<bool> g_doomed;    // streams to be destroyed then
HashMap<bool> g_origins;   // streams on which captures have begun

// During a capture the driver refuses calls such as cuMemFree() to some threads, and the capture is
// lost. Asks the driver to do so, by a call of the same class.
CUresult RefusalOfCapture(const Driver& driver) {
  if (g_captures.load(std::memory_order_acquire) == 0) return CUDA_SUCCESS;
  CUdeviceptr probe = 0;
  const CUresult result = driver.cuMemAlloc_v2(&probe, 1);
  if (result == CUDA_SUCCESS) driver.cuMemFree_v2(probe);
  // Without memory for the probe, the call was allowed.
  return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

bool Defer(uint64_t address) {
  MutexLock lock(&g_deferred_mutex);
  return g_captures.load(std::memory_order_acquire) != 0 && g_deferred.Put(address, true);
}

// Takes one of those that wait for the end of all captures. False if there is none.
bool TakeDeferred(HashMap<bool>* deferred, uint64_t* key) {
  MutexLock lock(&g_deferred_mutex);
  if (g_captures.load(std::memory_order_acquire) != 0) return false;
  *key = 0;
  deferred->ForEach([&](uint64_t each, bool) { *key = each; });
  bool taken = false;
  return *key != 0 && deferred->Take(*key, &taken);
}

bool IsDeferred(uint64_t address) {
  MutexLock lock(&g_deferred_mutex);
  return g_deferred.Get(address) != nullptr;
}

}  // namespace

bool IsBrokered() { return Broker() != nullptr; }

bool AllocateBrokered(const Entry& entry, uint64_t bytes, uint64_t* address, CUresult* result) {
  uint64_t context = 0;
  int device = -1;
  // Errors of arguments are the driver's to tell.
  if (!entry.outermost || bytes == 0 || !CurrentContext(entry.driver, &context, &device)) {
    return false;
  }
  *result = EnsureContext(device);
  if (*result != CUDA_SUCCESS) return true;
  GpumemBrokeredDevice* const pool = BrokeredDevice(device);
  if (pool == nullptr || g_captures.load(std::memory_order_acquire) != 0 ||
      PrimaryOf(device) != context) {
    return false;
  }
  const int answer = AllocateBehindGate(pool, /*of_streams=*/false,
                                        [&] { return Broker()->allocate(pool, bytes, address); });
  *result = answer == GPUMEM_ACCOUNTANT_OK ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  return true;
}

bool FreeBrokered(const Entry& entry, uint64_t address, CUresult* result) {
  uint64_t base = 0;
  uint64_t bytes = 0;
  if (!IsBrokered() || !entry.outermost) return false;
  const GateHold hold;
  if (g_captures.load(std::memory_order_acquire) == 0) {
    *result = CUDA_SUCCESS;
    return Broker()->free(address) != 0;
  }
  if (!Broker()->find(address, &base, &bytes) || base != address) return false;
  *result = IsDeferred(address) ? CUDA_ERROR_INVALID_VALUE : RefusalOfCapture(entry.driver);
  if (*result == CUDA_SUCCESS && !Defer(address)) Broker()->free(address);
  return true;
}

bool FreeBrokered(const Entry& entry, uint64_t address, CUstream stream, CUresult* result) {
  if (!IsBrokered() || !entry.outermost) return false;
  const GateHold hold;
  if (!IsOfAnyPrimary(entry.driver, stream)) {
    // The pool cannot follow the order of another context's stream.
    uint64_t base = 0;
    uint64_t bytes = 0;
    if (!Broker()->find(address, &base, &bytes) || base != address) return false;
    *result = entry.driver.cuStreamSynchronize(stream);
    if (*result == CUDA_SUCCESS && !Broker()->free(address)) *result = CUDA_ERROR_INVALID_VALUE;
    return true;
  }
  if (IsAnyCaptured() && !IsCaptured(entry.driver, stream)) {
    uint64_t base = 0;
    uint64_t bytes = 0;
    if (!Broker()->find(address, &base, &bytes) || base != address) return false;
    *result = RefusalOfCapture(entry.driver);
    if (*result != CUDA_SUCCESS) return true;
  }
  const int freed = Broker()->free_on_stream(address, stream);
  if (freed == 0) return false;
  // As the driver answers for memory from outside of the graph when the stream is being captured.
  *result = freed > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  return true;
}

void ForgetStream(CUstream stream) {
  if (!IsBrokered()) return;
  Broker()->forget_stream(stream);
  ForgetStreamContexts();
}

bool FindBrokered(uint64_t address, uint64_t* base, uint64_t* bytes) {
  return IsBrokered() && Broker()->find(address, base, bytes) != 0;
}

bool IsInBrokered(uint64_t address) {
  uint64_t base = 0;
  uint64_t bytes = 0;
  return FindBrokered(address, &base, &bytes);
}

uint64_t UnusedBrokered(int device) {
  GpumemBrokeredDevice* const pool = BrokeredDevice(device);
  return pool == nullptr ? 0 : Broker()->unused(pool);
}

uint64_t HeldBrokered(int device) {
  GpumemBrokeredDevice* const pool = BrokeredDevice(device);
  return pool == nullptr ? 0 : Broker()->held(pool);
}

bool TrimBrokered(int device) {
  GpumemBrokeredDevice* const pool = BrokeredDevice(device);
  return pool != nullptr && Broker()->trim(pool) != 0;
}

void DropBrokered(int device, bool may_wait) {
  GpumemBrokeredDevice* const pool = BrokeredDevice(device);
  if (pool == nullptr) return;
  const GateHold hold(may_wait ? GateHold::IfClosed::kWait : GateHold::IfClosed::kStayOutside);
  if (hold.refused()) return;
  Broker()->drop(pool);
}

bool IsAnyCaptured() { return g_captures.load(std::memory_order_acquire) != 0; }

bool IsCaptured(const Driver& driver, CUstream stream) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver.cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
         capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

void CaptureBegins() { g_captures.fetch_add(1, std::memory_order_acq_rel); }

void NoteCaptureOf(CUstream stream) {
  MutexLock lock(&g_deferred_mutex);
  g_origins.Put(reinterpret_cast<uint64_t>(stream), true);
}

bool EndsCapture(CUstream stream) {
  bool noted = false;
  MutexLock lock(&g_deferred_mutex);
  return g_origins.Take(reinterpret_cast<uint64_t>(stream), &noted);
}

bool DestroyAfterCaptures(CUstream stream) {
  MutexLock lock(&g_deferred_mutex);
  return IsAnyCaptured() && g_doomed.Put(reinterpret_cast<uint64_t>(stream), true);
}

void CaptureEnds() {
  if (g_captures.fetch_sub(1, std::memory_order_acq_rel) != 1 || !IsBrokered()) return;
  const GateHold hold;
  uint64_t key = 0;
  while (TakeDeferred(&g_doomed, &key)) {
    CUstream stream = reinterpret_cast<CUstream>(key);
    ForgetStream(stream);
    RealDriver().cuStreamDestroy_v2(stream);
  }
  while (TakeDeferred(&g_deferred, &key)) Broker()->free(key);
}

void AbandonBrokered() {
  AbandonGate();
  g_captures.store(0);
  g_deferred_mutex.Reset();
  g_deferred.Abandon();
  g_doomed.Abandon();
  g_origins.Abandon();
}

}  // namespace gpumem::preload

#endif  // GPUMEM_PRELOAD_BUILT
