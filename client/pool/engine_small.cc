// SPDX-License-Identifier: Apache-2.0
// Small blocks: the shards of their heap.
#include <algorithm>
#include <utility>

#include "client/pool/engine.h"
#include "client/pool/size_class.h"

namespace gpumem::internal {
namespace {

uint64_t Nobody(const Timeline*) { return 0; }

}  // namespace

// --- Taking --------------------------------------------------------------------------

Block Engine::AllocateSmall(ThreadCache& cache, uint64_t bytes, Stream stream) {
  const Timeline* timeline = nullptr;  // lives as long as the pool
  {
    const std::lock_guard<OwnerLock> lock(cache.lock);
    const KeptBlocks* const kept = cache.Find(stream);
    if (kept == nullptr) return {};
    timeline = kept->timeline;
  }
  Chunk* chunk = nullptr;
  const size_t count = used_shards_;
  for (size_t i = 0; i < count && chunk == nullptr; ++i) {
    const size_t number = (cache.shard + i) % count;
    SmallShard& shard = shards_[number];
    if (i == 0) {
      shard.mutex.Lock();
    } else if (!shard.mutex.TryLock()) {
      continue;
    }
    // A thread that waits for memory, or suspends the pool, enters each shard after it has said so.
    if (Caching()) chunk = shard.Take(RoundedBytes(bytes), timeline, Nobody);
    if (chunk != nullptr) taken_bytes_.Add(Taken::PartOfShard(number), chunk->bytes);
    shard.mutex.Unlock();
  }
  if (chunk == nullptr) return {};
  chunk->use = {
      .live = true, .size_class = static_cast<uint8_t>(SizeClassOf(bytes)), .small = true};
  cache.allocations.Add(1);
  const Block block = {.data = reinterpret_cast<void*>(chunk->at), .bytes = chunk->bytes};
  Retire(table_.Insert(chunk));
  return block;
}

size_t Engine::PreferredShard() const {
  const ThreadCache* const cache = KnownCacheOfThisThread();
  return cache == nullptr ? 0 : cache->shard;
}

std::vector<SmallShard*> Engine::Shards() {
  const size_t preferred = PreferredShard(), count = used_shards_.load();
  std::vector<SmallShard*> shards = {&shards_[preferred]};
  for (size_t i = 0; i < count; ++i) {
    if (i != preferred) shards.push_back(&shards_[i]);
  }
  return shards;
}

Chunk* Engine::TakeFromShards(uint64_t bytes, Timeline* timeline, BlockHeap::Bound bound) {
  // Memory of another shard is better than a new range.
  for (SmallShard* shard : Shards()) {
    const PlainMutexLock lock(&shard->mutex);
    if (Chunk* chunk = shard->Take(bytes, timeline, Nobody)) return chunk;
    if (Chunk* chunk = shard->Take(bytes, timeline, bound)) return chunk;
  }
  return nullptr;
}

Chunk* Engine::TakeOfRange(Chunk* range, uint64_t bytes, Timeline* timeline) {
  // Another stream's memory now belongs to this stream: it comes after that stream's work.
  const bool clean = range->was_clean();
  const uint64_t epoch = timeline->epoch();
  if (!clean) timeline->NoteFreed(epoch);
  const size_t preferred = PreferredShard();
  range->use = {.shard = static_cast<uint8_t>(preferred)};
  range_bytes_ += range->bytes;
  SmallShard& shard = shards_[preferred];
  const PlainMutexLock lock(&shard.mutex);
  shard.heap.AddRange(range->at, range->bytes, clean ? nullptr : timeline, epoch, range);
  return shard.Take(bytes, timeline, Nobody);
}

// --- Freeing -------------------------------------------------------------------------

std::vector<SmallShard*> Engine::PutSmall(absl::Span<Chunk* const> chunks, Timeline* timeline) {
  std::vector<SmallShard*> unused;
  for (auto chunk = chunks.begin(); chunk != chunks.end();) {
    SmallShard& shard = shards_[(*chunk)->range->use.shard];
    const size_t part = PartOf(*chunk);
    bool any = false;
    uint64_t bytes = 0;
    {
      const PlainMutexLock lock(&shard.mutex);
      for (; chunk != chunks.end() && &shards_[(*chunk)->range->use.shard] == &shard; ++chunk) {
        bytes += (*chunk)->bytes;
        if (shard.Put(*chunk, OwnerOf(*chunk, timeline), (*chunk)->epoch)) any = true;
      }
      taken_bytes_.Subtract(part, bytes);
    }
    if (any) unused.push_back(&shard);
  }
  return unused;
}

uint64_t Engine::ReturnRanges(SmallShard& shard) {
  std::vector<std::pair<Chunk*, std::vector<BlockHeap::Piece>>> ranges;
  {
    const PlainMutexLock lock(&shard.mutex);
    for (Chunk* range : std::exchange(shard.unused, {})) {
      ranges.emplace_back(range, shard.heap.RemoveRun(shard.heap.First(range->at)));
    }
  }
  uint64_t largest = 0;
  // The pieces may join only once the streams that freed them are seen to be done.
  for (const auto& [range, pieces] : ranges) {
    const uint64_t all = range->bytes;
    range_bytes_ -= all;
    largest = std::max({largest, all, large_.PutPieces(range, pieces)});
  }
  return largest;
}

}  // namespace gpumem::internal
