// SPDX-License-Identifier: Apache-2.0
// The pool's map from a block's address to its chunk: many tables, each with a lock, so that
// threads that take memory from different shards seldom wait for each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "client/pool/block_heap.h"
#include "client/pool/pointer_table.h"
#include "client/pool/shards/plain_mutex.h"
#include "client/pool/size_class.h"

namespace gpumem::internal {

// Thread-safe.
class PointerTables {
 public:
  // Null: no block begins there. Without a lock: the caller holds the lock of a thread cache, all
  // of which are visited before a table that Insert() has returned is destroyed.
  Chunk* Find(uintptr_t at) const { return PartOf(at).table.Find(at); }
  // The same for a caller without such a lock.
  Chunk* FindLocked(uintptr_t at) const {
    const Part& part = PartOf(at);
    const PlainMutexLock lock(&part.mutex);
    return part.table.Find(at);
  }

  // As PointerTable::Insert() and Erase().
  std::unique_ptr<PointerTable::Table> Insert(Chunk* chunk) {
    Part& part = PartOf(chunk->at);
    const PlainMutexLock lock(&part.mutex);
    return part.table.Insert(chunk->at, chunk);
  }
  void Erase(absl::Span<Chunk* const> chunks) {
    for (const Chunk* chunk : chunks) {
      Part& part = PartOf(chunk->at);
      const PlainMutexLock lock(&part.mutex);
      part.table.Erase(chunk->at);
    }
  }

  // While other threads insert and erase, this is about the present size.
  size_t size() const {
    size_t size = 0;
    for (const Part& part : parts_) {
      const PlainMutexLock lock(&part.mutex);
      size += part.table.size();
    }
    return size;
  }

 private:
  struct alignas(128) Part {
    mutable PlainMutex mutex;
    PointerTable table;  // written under the mutex
  };
  static constexpr int kBits = 6;

  // Blocks of one range, which are of one shard, are in one table, or two.
  static size_t IndexOf(uintptr_t at) {
    return at / kSmallRange * 0x9E3779B97F4A7C15u >> (64 - kBits);
  }
  Part& PartOf(uintptr_t at) { return parts_[IndexOf(at)]; }
  const Part& PartOf(uintptr_t at) const { return parts_[IndexOf(at)]; }

  std::array<Part, size_t{1} << kBits> parts_;
};

}  // namespace gpumem::internal
