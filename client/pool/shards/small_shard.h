// SPDX-License-Identifier: Apache-2.0
// A part of the heap of small blocks, with a lock. Each thread prefers one shard, so that threads
// that allocate small blocks seldom wait for each other. A shard cuts its blocks from ranges, which
// are taken chunks of the heap of large blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/pool/block_heap.h"
#include "client/pool/shards/plain_mutex.h"

namespace gpumem::internal {

struct alignas(128) SmallShard {
  mutable PlainMutex mutex;
  BlockHeap heap ABSL_GUARDED_BY(mutex){/*join_ranges=*/false};
  // The ranges without a block, about to return to the heap of large blocks.
  std::vector<Chunk*> unused ABSL_GUARDED_BY(mutex);

  // Takes a chunk as BlockHeap::Take does.
  Chunk* Take(uint64_t bytes, const Timeline* stream, BlockHeap::Bound bound)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Chunk* const chunk = heap.Take(bytes, stream, bound);
    if (chunk == nullptr) return nullptr;
    Chunk* const range = chunk->range;
    if (range->use.used_bytes == 0) std::erase(unused, range);
    range->use.used_bytes += chunk->bytes;
    return chunk;
  }
  // Frees a chunk as BlockHeap::Put does. Returns true if its range has no block any more.
  bool Put(Chunk* chunk, Timeline* freed_on, uint64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Chunk* const range = chunk->range;
    range->use.used_bytes -= chunk->bytes;
    heap.Put(chunk, freed_on, epoch);
    if (range->use.used_bytes > 0) return false;
    unused.push_back(range);
    return true;
  }
};

}  // namespace gpumem::internal
