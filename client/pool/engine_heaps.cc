// SPDX-License-Identifier: Apache-2.0
// Allocates blocks from the heaps and frees them, in the order of streams.
#include <algorithm>
#include <utility>

#include "client/pool/engine.h"
#include "client/pool/size_class.h"

namespace gpumem::internal {

// --- Taking --------------------------------------------------------------------------

// May release the lock for a moment.
Block Engine::HandOut(Chunk* chunk, uint64_t bytes, Stream stream) {
  const bool small = IsSmall(bytes);
  chunk->use = {.live = true,
                .size_class = static_cast<uint8_t>(small ? SizeClassOf(bytes) : 0),
                .small = small};
  taken_bytes_.Add(PartOf(chunk), chunk->bytes);
  ++counts_.allocations;
  std::unique_ptr<PointerTable::Table> old_table = table_.Insert(chunk);
  const Block block = {.data = reinterpret_cast<void*>(chunk->at), .bytes = chunk->bytes};
  if (old_table == nullptr && !hooked_.load(std::memory_order_relaxed)) return block;
  mutex_.Unlock();
  Retire(std::move(old_table));
  Tell(PoolEvent::What::kAllocate, reinterpret_cast<uintptr_t>(block.data), block.bytes,
       stream == AnyStream() ? nullptr : stream);
  mutex_.Lock();
  return block;
}

size_t Engine::PartOf(const Chunk* chunk) {
  return chunk->use.small ? Taken::PartOfShard(chunk->range->use.shard) : Taken::kLarge;
}

void Engine::Retire(std::unique_ptr<PointerTable::Table> table) {
  if (table == nullptr) return;
  // Readers hold one of these locks.
  std::vector<OwnerLock*> locks;
  const auto caches = Caches();
  for (const auto& cache : caches) locks.push_back(&cache->lock);
  const OwnerLock::Visit nobody_reads(std::move(locks));
}

Chunk* Engine::TakeKnown(uint64_t bytes, Timeline* timeline) {
  // Memory freed on other streams separates free memory, so a large block polls it first.
  if (!IsSmall(bytes)) return nullptr;
  const auto follow = [&](const Timeline* of)
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Followed(timeline, of); };
  if (Chunk* chunk = TakeFromShards(bytes, timeline, follow)) return chunk;
  Chunk* const range = TakeFromLarge(kSmallRange, timeline);
  return range == nullptr ? nullptr : TakeOfRange(range, bytes, timeline);
}

Chunk* Engine::TakeFor(uint64_t bytes, Timeline* timeline) {
  if (policy_.allow_opportunistic || !IsSmall(bytes)) {
    // Records an event that all streams wait for only as the last resort.
    for (const Polled polled : {Polled::kMost, Polled::kAll}) {
      if (policy_.allow_opportunistic) PollAll(timeline, polled);
      Chunk* const chunk =
          IsSmall(bytes) ? TakeKnown(bytes, timeline) : TakeFromLarge(bytes, timeline);
      if (chunk != nullptr) return chunk;
    }
  }
  return TakeByWaiting(bytes, timeline, /*coupled_only=*/true);
}

Chunk* Engine::TakeFromLarge(uint64_t bytes, Timeline* timeline) {
  const auto nobody = [](const Timeline*) -> uint64_t { return 0; };
  const auto follow = [&](const Timeline* of)
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Followed(timeline, of); };
  if (Chunk* chunk = large_.Take(bytes, timeline, nobody)) return chunk;
  if (Chunk* chunk = large_.Take(bytes, timeline, follow)) return chunk;
  return large_.Gather(bytes, follow);
}

uint64_t Engine::Followed(const Timeline* by, const Timeline* of) const {
  return by == of || policy_.follow_event_dependencies ? order_.Bound(by, of) : 0;
}

// Waiting for one stream is often enough; otherwise waits for all streams, if they suffice.
Chunk* Engine::TakeByWaiting(uint64_t bytes, Timeline* timeline, bool coupled_only) {
  std::vector<Timeline*> owners = Owners();
  std::erase_if(owners, [&](const Timeline* owner) {
    return owner == timeline || (coupled_only && !StreamOrder::Coupled(timeline, owner));
  });
  // True if waiting for these streams would provide the memory.
  const auto would_do =
      [&](absl::Span<Timeline* const> waited) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const auto bound = [&](const Timeline* of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return std::find(waited.begin(), waited.end(), of) != waited.end()
                     ? UINT64_MAX
                     : order_.Bound(timeline, of);
        };
        if (IsSmall(bytes)) {
          for (SmallShard* shard : Shards()) {
            const PlainMutexLock lock(&shard->mutex);
            if (shard->heap.HasFit(bytes, bound)) return true;
          }
        }
        return large_.HasRun(IsSmall(bytes) ? kSmallRange : bytes, bound);
      };
  for (bool waits = false; !waits;) {
    std::vector<Timeline*> enough;
    for (Timeline* owner : owners) {
      if (enough.empty() && would_do({&owner, 1})) enough = {owner};
    }
    if (enough.empty() && !owners.empty() && would_do(owners)) enough = owners;
    if (enough.empty()) return nullptr;
    waits = true;
    for (Timeline* owner : enough) {
      if (order_.MakeWait(timeline, owner).ok()) {
        ++counts_.dependencies;
        continue;
      }
      // It is being captured: the others may suffice.
      std::erase(owners, owner);
      waits = false;
      break;
    }
  }
  const auto bound = [&](const Timeline* of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return order_.Bound(timeline, of);
  };
  const auto take_large = [&](uint64_t of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Chunk* const chunk = large_.Take(of, timeline, bound);
    return chunk != nullptr ? chunk : large_.Gather(of, bound);
  };
  if (!IsSmall(bytes)) return take_large(bytes);
  if (Chunk* chunk = TakeFromShards(bytes, timeline, bound)) return chunk;
  Chunk* const range = take_large(kSmallRange);
  return range == nullptr ? nullptr : TakeOfRange(range, bytes, timeline);
}

// --- Freeing -------------------------------------------------------------------------

void Engine::PutBack(absl::Span<Chunk* const> chunks, Timeline* timeline, bool shrinks) {
  std::vector<Chunk*> small, large;
  for (Chunk* chunk : chunks) (chunk->use.small ? small : large).push_back(chunk);
  table_.Erase(chunks);
  const std::vector<SmallShard*> shards = PutSmall(small, timeline);
  if (large.empty() && shards.empty()) {
    moving_.Subtract(chunks.size());
    // Either this thread sees that another waits, or that thread sees the memory.
    if (watching_.load() == 0) return;
    chunks = {};
  }
  std::vector<Segment> released;
  std::vector<std::shared_ptr<Interrupt>> awaiting;
  {
    absl::MutexLock lock(&mutex_);
    awaiting = awaiting_;
    uint64_t largest = 0;
    for (SmallShard* shard : shards) largest = std::max(largest, ReturnRanges(*shard));
    for (Chunk* chunk : large) largest = std::max(largest, PutLarge(chunk, timeline));
    ++returns_;
    moving_.Subtract(chunks.size());
    // While another thread grows, that thread shrinks.
    if (shrinks && !growing_ && largest >= source_->granularity() &&
        reserved_bytes_ - taken_bytes_.value() > release_threshold_) {
      released = Shrink(release_threshold_);
    }
  }
  for (const auto& interrupt : awaiting) interrupt->Nudge();
  // The blocks are back, whatever the daemon returns.
  ReleaseAll(released).IgnoreError();
}

Timeline* Engine::OwnerOf(const Chunk* chunk, Timeline* timeline) {
  if (chunk->epoch <= StreamOrder::Done(timeline)) return nullptr;
  timeline->NoteFreed(chunk->epoch);
  return timeline;
}

uint64_t Engine::PutLarge(Chunk* chunk, Timeline* timeline) {
  taken_bytes_.Subtract(PartOf(chunk), chunk->bytes);
  return large_.Put(chunk, OwnerOf(chunk, timeline), chunk->epoch)->bytes;
}

std::vector<Timeline*> Engine::Owners() {
  std::vector<Timeline*> owners = large_.Owners();
  for (SmallShard* shard : Shards()) {
    const PlainMutexLock lock(&shard->mutex);
    for (Timeline* owner : shard->heap.Owners()) {
      if (std::find(owners.begin(), owners.end(), owner) == owners.end()) owners.push_back(owner);
    }
  }
  return owners;
}

void Engine::PollAll(const Timeline* but, Polled polled) {
  for (Timeline* owner : Owners()) {
    if (owner == but) continue;
    if (polled != Polled::kAll && order_.IsBarrier(owner)) continue;
    const uint64_t done = order_.Poll(owner);
    if (done == owner->cleaned) continue;
    owner->cleaned = done;
    ++counts_.reused_after_event;
    large_.Clean(owner, done);
    // Memory that comes to a shard after this is seen to be clean when it comes.
    for (SmallShard* shard : Shards()) {
      const PlainMutexLock lock(&shard->mutex);
      shard->heap.Clean(owner, done);
    }
  }
}

}  // namespace gpumem::internal
