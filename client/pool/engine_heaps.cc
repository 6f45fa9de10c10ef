// SPDX-License-Identifier: Apache-2.0
// Allocates blocks from the heaps and frees them, in the order of streams.
#include <algorithm>
#include <utility>

#include "client/pool/engine.h"
#include "client/pool/size_class.h"

namespace gpumem::internal {

// --- Taking --------------------------------------------------------------------------

// Releases the lock for a moment.
Block Engine::HandOut(Chunk* chunk, uint64_t bytes, Stream stream) {
  const bool small = IsSmall(bytes);
  chunk->use = {.live = true,
                .size_class = static_cast<uint8_t>(small ? SizeClassOf(bytes) : 0),
                .small = small};
  if (small) chunk->range->use.used_bytes += chunk->bytes;
  taken_bytes_ += chunk->bytes;
  counts_.used_peak_bytes = std::max(counts_.used_peak_bytes, taken_bytes_);
  ++counts_.allocations;
  const std::unique_ptr<PointerTable::Table> old_table = table_.Insert(chunk->at, chunk);
  const Block block = {.data = reinterpret_cast<void*>(chunk->at), .bytes = chunk->bytes};
  mutex_.Unlock();
  if (old_table != nullptr) {
    // Readers hold one of these locks.
    std::vector<OwnerLock*> locks;
    const auto caches = Caches();
    for (const auto& cache : caches) locks.push_back(&cache->lock);
    const OwnerLock::Visit nobody_reads(std::move(locks));
  }
  Tell(PoolEvent::What::kAllocate, reinterpret_cast<uintptr_t>(block.data), block.bytes,
       stream == AnyStream() ? nullptr : stream);
  mutex_.Lock();
  return block;
}

Chunk* Engine::TakeFor(uint64_t bytes, Timeline* timeline) {
  // Memory freed on other streams separates free memory, so a large block polls it first. It
  // records an event that all streams wait for only as the last resort.
  for (const Polled polled : {Polled::kNothing, Polled::kMost, Polled::kAll}) {
    if (polled == Polled::kNothing && !IsSmall(bytes)) continue;
    if (polled != Polled::kNothing) {
      if (!policy_.allow_opportunistic && IsSmall(bytes)) break;
      if (policy_.allow_opportunistic) PollAll(timeline, polled);
    }
    if (!IsSmall(bytes)) {
      if (Chunk* chunk = TakeFrom(large_, bytes, timeline)) return chunk;
      continue;
    }
    if (Chunk* chunk = TakeFrom(small_, bytes, timeline)) return chunk;
    if (Chunk* host = TakeFrom(large_, kSmallRange, timeline)) {
      AddSmallRange(host, timeline);
      return TakeFrom(small_, bytes, timeline);
    }
  }
  return TakeByWaiting(bytes, timeline, /*coupled_only=*/true);
}

Chunk* Engine::TakeFrom(BlockHeap& heap, uint64_t bytes, Timeline* timeline) {
  const auto nobody = [](const Timeline*) -> uint64_t { return 0; };
  const auto follow = [&](const Timeline* of)
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Followed(timeline, of); };
  if (Chunk* chunk = heap.Take(bytes, timeline, nobody)) return chunk;
  if (Chunk* chunk = heap.Take(bytes, timeline, follow)) return chunk;
  return &heap == &large_ ? heap.Gather(bytes, follow) : nullptr;
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
        if (IsSmall(bytes) && small_.HasFit(bytes, bound)) return true;
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
  if (Chunk* chunk = small_.Take(bytes, timeline, bound)) return chunk;
  Chunk* const host = take_large(kSmallRange);
  if (host == nullptr) return nullptr;
  AddSmallRange(host, timeline);
  return small_.Take(bytes, timeline, bound);
}

void Engine::AddSmallRange(Chunk* host, Timeline* timeline) {
  // Another stream's memory now belongs to this stream: it comes after that stream's work.
  const bool clean = host->was_clean();
  const uint64_t epoch = timeline->epoch();
  if (!clean) timeline->latest_freed = std::max(timeline->latest_freed, epoch);
  host->use = {};
  range_bytes_ += host->bytes;
  small_.AddRange(host->at, host->bytes, clean ? nullptr : timeline, epoch, host);
}

// --- Freeing -------------------------------------------------------------------------

void Engine::PutBack(absl::Span<Chunk* const> chunks, Timeline* timeline, bool shrinks) {
  std::vector<Segment> released;
  std::vector<std::shared_ptr<Interrupt>> awaiting;
  {
    absl::MutexLock lock(&mutex_);
    awaiting = awaiting_;
    uint64_t largest = 0;
    for (Chunk* chunk : chunks) largest = std::max(largest, PutChunk(chunk, timeline));
    ++returns_;
    moving_.fetch_sub(chunks.size(), std::memory_order_relaxed);
    // While another thread grows, that thread shrinks.
    if (shrinks && !growing_ && largest >= source_->granularity() &&
        reserved_bytes_ - taken_bytes_ > release_threshold_) {
      released = Shrink(release_threshold_);
    }
  }
  for (const auto& interrupt : awaiting) interrupt->Nudge();
  // The blocks are back, whatever the daemon returns.
  ReleaseAll(released).IgnoreError();
}

uint64_t Engine::PutChunk(Chunk* chunk, Timeline* timeline) {
  taken_bytes_ -= chunk->bytes;
  table_.Erase(chunk->at);
  uint64_t epoch = chunk->epoch;
  Timeline* owner = timeline;
  if (epoch <= order_.Done(timeline)) {
    owner = nullptr;
    epoch = 0;
  } else {
    timeline->latest_freed = std::max(timeline->latest_freed, epoch);
  }
  if (!chunk->use.small) return large_.Put(chunk, owner, epoch)->bytes;
  Chunk* const host = chunk->range;
  host->use.used_bytes -= chunk->bytes;
  Chunk* const put = small_.Put(chunk, owner, epoch);
  if (host->use.used_bytes > 0) return 0;
  // The range is unused: its pieces return to the large blocks. They may join only once the streams
  // that freed them are seen to be done.
  const uint64_t all = host->bytes;
  range_bytes_ -= all;
  return std::max(all, large_.PutPieces(host, small_.RemoveRun(put)));
}

std::vector<Timeline*> Engine::Owners() const {
  std::vector<Timeline*> owners = large_.Owners();
  for (Timeline* owner : small_.Owners()) {
    if (std::find(owners.begin(), owners.end(), owner) == owners.end()) owners.push_back(owner);
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
    small_.Clean(owner, done);
  }
}

}  // namespace gpumem::internal
