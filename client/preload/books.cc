// SPDX-License-Identifier: Apache-2.0
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "client/preload/books.h"
#include "client/preload/brokered.h"
#include "client/preload/calls/late_frees.h"
#include "client/preload/vmm/brokered_vmm.h"

namespace gpumem::preload {

RecordTable g_pointers;
RecordTable g_arrays;

bool RecordTable::Put(uint64_t key, const Record& record) {
  Shard& shard = ShardOf(key);
  MutexLock lock(&shard.mutex);
  return shard.records.Put(key, record);
}

bool RecordTable::Take(uint64_t key, Record* record) {
  Shard& shard = ShardOf(key);
  MutexLock lock(&shard.mutex);
  return shard.records.Take(key, record);
}

void RecordTable::Abandon() {
  for (Shard& shard : shards_) {
    shard.mutex.Reset();
    shard.records.Abandon();
  }
}

bool SettleBooks(int device) {
  bool pools = SettlePools(device);
  bool graphs = SettleGraphs(device);
  bool frees = SettleFrees();
  return pools || graphs || frees;
}

void AbandonBooks() {
  g_pointers.Abandon();
  g_arrays.Abandon();
  AbandonVmm();
  AbandonPools();
  AbandonFrees();
  AbandonGraphs();
  AbandonContexts();
  AbandonBrokered();
  AbandonPhysical();
}

}  // namespace gpumem::preload

#endif  // GPUMEM_PRELOAD_BUILT
