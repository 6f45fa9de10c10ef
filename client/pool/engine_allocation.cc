// Allocations from the heaps, and how they wait for memory if the pool has none left.
#include <algorithm>
#include <utility>

#include "client/pool/engine.h"
#include "client/pool/size_class.h"
#include "common/bytes.h"

namespace gpumem::internal {
namespace {

// Before the pool grows, thread caches are collected if they hold more than this part of all
// memory: then the next collection is far enough away.
constexpr uint64_t kKeptPart = 16;

// Poll interval for events without notification: the end of GPU work, a raised limit, a daemon.
constexpr absl::Duration kLookEvery = absl::Milliseconds(50);

bool IsSmall(uint64_t bytes) { return bytes <= kMaxSmallBytes; }

}  // namespace

absl::StatusOr<Block> Engine::AllocateFromHeaps(uint64_t bytes, Stream stream) {
  const uint64_t rounded = RoundedBytes(bytes);
  if (rounded < bytes || !gpumem::RoundUp(rounded, source_->granularity()).ok()) {
    return absl::InvalidArgumentError("no device has that many bytes");
  }
  const absl::Time deadline = absl::Now() + options_.wait;
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<Timeline*> timeline = order_.Get(stream);
  if (!timeline.ok()) return timeline.status();
  if (!IsSmall(rounded) && !large_.HasCloseFit(rounded, *timeline)) {
    // Blocks in this thread's cache may adjoin free memory.
    mutex_.Unlock();
    CollectOwnLarge(stream);
    mutex_.Lock();
  }
  // The attempts since memory last became available.
  bool collected_own = false, collected = false, waited = false, shrunk = false, settled = false;
  while (true) {
    if (Chunk* const chunk = TakeFor(rounded, *timeline)) return HandOut(chunk, bytes, stream);
    if (!std::exchange(collected_own, true)) {
      mutex_.Unlock();
      CollectOwn();
      mutex_.Lock();
      continue;
    }
    // Disturbing other threads is worthwhile only if they cache much.
    const auto collect = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      collected = true;
      mutex_.Unlock();
      CollectKept(nullptr, /*forget=*/false);
      mutex_.Lock();
    };
    if (!collected && !growing_ && KeptBytes() > reserved_bytes_ / kKeptPart) {
      collect();
      continue;
    }
    absl::Status grown = Grow(rounded, *timeline);
    if (grown.ok()) continue;
    if (!collected) {
      collect();
      continue;
    }
    // Memory may have returned meanwhile.
    if (Chunk* const chunk = TakeFor(rounded, *timeline)) return HandOut(chunk, bytes, stream);
    if (policy_.allow_internal_dependencies) {
      if (Chunk* const chunk = TakeByWaiting(rounded, *timeline, /*coupled_only=*/false)) {
        return HandOut(chunk, bytes, stream);
      }
    }
    if ((*timeline)->stream() == AnyStream() && !std::exchange(waited, true)) {
      mutex_.Unlock();
      WaitForOwners(nullptr).IgnoreError();  // of all streams that permit it
      mutex_.Lock();
      PollAll(nullptr, Polled::kAll);
      continue;
    }
    if (absl::IsResourceExhausted(grown) && !std::exchange(shrunk, true)) {
      const std::vector<Segment> released = Shrink(0);
      mutex_.Unlock();
      ReleaseAll(released).IgnoreError();
      mutex_.Lock();
      continue;  // even without a release: polling has joined free memory
    }
    if (moving_.load(std::memory_order_relaxed) > 0 && !std::exchange(settled, true)) {
      // Another thread holds blocks that it is about to put back.
      const auto none_moves = [this] { return moving_.load(std::memory_order_relaxed) == 0; };
      mutex_.AwaitWithTimeout(absl::Condition(&none_moves), absl::Milliseconds(100));
      continue;
    }
    if (const auto callback = out_of_memory_) {
      mutex_.Unlock();
      const bool again = callback(bytes);
      mutex_.Lock();
      if (again) {
        collected_own = collected = waited = shrunk = settled = false;
        continue;
      }
    }
    if (absl::Now() < deadline &&
        (absl::IsResourceExhausted(grown) || absl::IsUnavailable(grown))) {
      const Wanted wanted = {
          .bytes = bytes, .rounded = rounded, .stream = stream, .timeline = *timeline};
      if (Block block = Await(wanted, grown, deadline); block.data != nullptr) return block;
      collected_own = collected = waited = shrunk = settled = false;
      continue;
    }
    ++counts_.out_of_memory;
    return grown;
  }
}

Block Engine::Await(const Wanted& wanted, const absl::Status& refusal, absl::Time deadline) {
  ++waiting_;  // threads cache nothing while this is above 0
  Block block;
  const uint64_t seen = returns_;
  const absl::Time began = absl::Now();
  // While the daemon is gone, polls for it.
  if (absl::IsResourceExhausted(refusal)) block = AwaitDaemon(wanted, deadline);
  // The daemon refused to let it wait: that may pass, and other threads may free memory here.
  if (block.data == nullptr && absl::Now() < began + kLookEvery) {
    const auto returned = [this, seen]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return returns_ != seen; };
    mutex_.AwaitWithDeadline(absl::Condition(&returned), std::min(deadline, began + kLookEvery));
  }
  --waiting_;
  return block;
}

Block Engine::AwaitDaemon(const Wanted& wanted, absl::Time deadline) {
  Hole hole = Missing(wanted);
  if (hole.bytes == 0) return {};
  const auto interrupt = std::make_shared<Interrupt>();
  awaiting_.push_back(interrupt);
  Block block;
  const auto look = [&] {
    block = TryAgain(wanted);
    return block.data != nullptr;
  };
  mutex_.Unlock();
  const absl::StatusOr<SegmentSource::Range> range = source_->AcquireWaiting(
      hole.bytes, hole.at, deadline - absl::Now(), {.interrupt = interrupt, .look = look});
  mutex_.Lock();
  awaiting_.erase(std::find(awaiting_.begin(), awaiting_.end(), interrupt));
  if (!range.ok()) return block;
  const uint64_t room = limit_ - std::min(limit_, reserved_bytes_);
  if (block.data == nullptr && range->bytes <= room) {
    Adopt({&*range, 1});
    return TakeOrNone(wanted);  // before any other thread sees it
  }
  // It was served here at the same moment, or the limit was lowered or reached.
  mutex_.Unlock();
  source_->Release(range->id).IgnoreError();
  mutex_.Lock();
  return block;
}

Engine::Hole Engine::Missing(const Wanted& wanted) const {
  const uint64_t granule = source_->granularity();
  const uint64_t room = limit_ - std::min(limit_, reserved_bytes_);
  const uint64_t bytes = gpumem::RoundUp(std::max(wanted.rounded, kSmallRange), granule).value();
  const Place place = FindPlace(bytes, wanted.timeline, granule);
  // Never holds one part while it waits for another: all waiting sessions could deadlock.
  if (place.holes.size() == 1 && place.missing <= room) return place.holes.front();
  if (bytes <= room) return {.at = 0, .bytes = bytes};
  return {};
}

Block Engine::TryAgain(const Wanted& wanted) {
  if (KeptBytes() > 0) CollectKept(nullptr, /*forget=*/false);
  absl::MutexLock lock(&mutex_);
  return TakeOrNone(wanted);
}

Block Engine::TakeOrNone(const Wanted& wanted) {
  Chunk* chunk = TakeFor(wanted.rounded, wanted.timeline);
  if (chunk == nullptr && policy_.allow_internal_dependencies) {
    chunk = TakeByWaiting(wanted.rounded, wanted.timeline, /*coupled_only=*/false);
  }
  return chunk == nullptr ? Block{} : HandOut(chunk, wanted.bytes, wanted.stream);
}

}  // namespace gpumem::internal
