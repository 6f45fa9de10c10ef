// SPDX-License-Identifier: Apache-2.0
// Memory of cuMemAlloc() that is freed in the order of a stream. The driver has it until the stream
// has come to the free. So it is charged until then, as an event shows.
#pragma once

#include "client/preload/accounting.h"
#include "client/preload/driver.h"
#include "client/preload/lock.h"
#include "client/preload/vmm/ranges.h"

namespace gpumem::preload {

struct LateFree {
  CUevent event;
  uint64_t context;  // the event's, and the stream's
  Charge charge;
};

extern Mutex g_frees_mutex;
extern List<LateFree> g_frees;  // by the time of the calls

// Refunds a charge once the work on the stream is done. The driver has accepted the free.
void RefundInOrder(const Driver& driver, const Charge& charge, CUstream stream);

// Refunds what streams have come to. True if that was anything.
bool SettleFrees();

// Refunds what was freed on streams of contexts for which `gone` is true: their work has ended, and
// their events are not valid any more.
template <typename Gone>
void RefundFreesIf(Gone gone) {
  MutexLock lock(&g_frees_mutex);
  size_t kept = 0;
  for (size_t at = 0; at < g_frees.count; ++at) {
    const LateFree late = g_frees.items[at];
    if (gone(late.context)) {
      Refund(late.charge);
    } else {
      g_frees.items[kept++] = late;
    }
  }
  g_frees.count = kept;
}

void AbandonFrees();

}  // namespace gpumem::preload
