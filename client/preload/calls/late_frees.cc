// SPDX-License-Identifier: Apache-2.0
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "client/preload/books.h"
#include "client/preload/calls/late_frees.h"

namespace gpumem::preload {

Mutex g_frees_mutex;
List<LateFree> g_frees;

namespace {

// Requires g_frees_mutex. Refunds those that are done: up to the first one that is not, or all.
bool RefundDone(const Driver& driver, bool all) {
  size_t kept = 0;
  size_t at = 0;
  for (; at < g_frees.count; ++at) {
    LateFree& late = g_frees.items[at];
    // Any error of the context's: its memory is lost to the program.
    if (driver.cuEventQuery(late.event) == CUDA_ERROR_NOT_READY) {
      if (!all) break;
      g_frees.items[kept++] = late;
      continue;
    }
    driver.cuEventDestroy_v2(late.event);
    Refund(late.charge);
  }
  const bool any = at > kept;
  while (at < g_frees.count) g_frees.items[kept++] = g_frees.items[at++];
  g_frees.count = kept;
  return any;
}

}  // namespace

void RefundInOrder(const Driver& driver, const Charge& charge, CUstream stream) {
  const RelaxedCapture relaxed(driver);
  MutexLock lock(&g_frees_mutex);
  RefundDone(driver, /*all=*/false);
  CUevent event = nullptr;
  uint64_t context = 0;
  int device = -1;
  if (CurrentContext(driver, &context, &device) && g_frees.MakeRoom() &&
      driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
    if (driver.cuEventRecord(event, stream) == CUDA_SUCCESS) {
      g_frees.items[g_frees.count++] = {event, context, charge};
      return;
    }
    driver.cuEventDestroy_v2(event);
  }
  // Such as a stream of a context that is not current: an event cannot be recorded there.
  Refund(charge);
}

bool SettleFrees() {
  const Driver& driver = RealDriver();
  MutexLock lock(&g_frees_mutex);
  if (g_frees.count == 0) return false;
  const RelaxedCapture relaxed(driver);
  return RefundDone(driver, /*all=*/true);
}

void AbandonFrees() {
  g_frees_mutex.Reset();
  g_frees = {};
}

}  // namespace gpumem::preload

#endif  // GPUMEM_PRELOAD_BUILT
