// SPDX-License-Identifier: Apache-2.0
// What each part of the preload remembers of the driver's objects.
#pragma once

#include <stdint.h>

#include "client/preload/accounting.h"
#include "client/preload/hash_map.h"
#include "client/preload/lock.h"

namespace gpumem::preload {

// What an address or handle was charged, and the context with which its memory goes.
struct Record {
  Charge charge;
  uint64_t context = 0;  // 0: it does not go with a context
};

// Records by address or handle, in parts with a lock each, so that threads rarely meet.
class RecordTable {
 public:
  constexpr RecordTable() = default;

  // Returns false if there is no memory for the entry.
  bool Put(uint64_t key, const Record& record);
  // True if it was there. A free takes the record first: after it, another thread may get the same
  // address.
  bool Take(uint64_t key, Record* record);
  // Takes and refunds those for which `condition(key, record)` is true.
  template <typename Condition>
  void RefundIf(Condition condition) {
    for (Shard& shard : shards_) {
      MutexLock lock(&shard.mutex);
      shard.records.RemoveIf([&](uint64_t key, const Record& record) {
        if (!condition(key, record)) return false;
        Refund(record.charge);
        return true;
      });
    }
  }
  void Abandon();

 private:
  static constexpr int kShards = 32;
  struct alignas(64) Shard {
    Mutex mutex;
    HashMap<Record> records;
  };
  Shard& ShardOf(uint64_t key) { return shards_[((key >> 9) ^ (key >> 21)) % kShards]; }

  Shard shards_[kShards];
};

// Pointers of cuMemAlloc() and its relatives; arrays and mipmapped arrays.
extern RecordTable g_pointers;
extern RecordTable g_arrays;

// Returns the current context and its device; false if the thread has none.
bool CurrentContext(const Driver& driver, uint64_t* context, int* device);

// Forgets which device a context handle belonged to: it may come again for another one.
void ForgetContexts();

// Allocates by `call`, which returns the driver's answer and writes the address or handle where
// `key` finds it, and keeps the record. During a capture the driver refuses with code 900, and
// nothing stays charged.
template <typename Call, typename Key>
CUresult AllocateRecorded(const Entry& entry, RecordTable* table, uint64_t bytes, Call call,
                          Key key) {
  Record record;
  int device = -1;
  // Without a context the driver answers.
  if (!entry.outermost || !CurrentContext(entry.driver, &record.context, &device)) return call();
  CUresult result = EnsureContext(device);
  if (result == CUDA_SUCCESS) result = Reserve(device, bytes, &record.charge);
  if (result != CUDA_SUCCESS) return result;
  result = call();
  if (result != CUDA_SUCCESS) {
    Refund(record.charge);
    return result;
  }
  // Without room for the record it stays charged until the process ends.
  if (record.charge.device >= 0) table->Put(key(), record);
  return CUDA_SUCCESS;
}

// Brings the charges of the device's pools and graphs to what the driver holds. True if that gave
// something back.
bool SettleBooks(int device);

// The parts of it; -1 for all devices.
bool SettlePools(int device);
bool SettleGraphs(int device);

// Waits for all work of the process, in all contexts that the program has made or retained. Calls
// in other threads that make or destroy contexts wait meanwhile.
CUresult SynchronizeContexts(const Driver& driver);

// Returns the handle of a device's primary context; 0 if the program has not had it.
uint64_t PrimaryOf(int device);

// Refunds the pools of a device that has no context left, and forgets their handles, which need not
// be valid any more. A pool that lives on is charged again when it is used.
void DropPools(int device);

// Forgets everything, in a child after fork().
void AbandonBooks();
void AbandonVmm();
void AbandonPools();
void AbandonGraphs();
void AbandonContexts();

// The last reference to an array that has physical memory bound to it has gone (calls/vmm.cc).
void UnbindArray(uint64_t array);

}  // namespace gpumem::preload
