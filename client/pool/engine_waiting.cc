// Allocations that wait for memory if the pool has none left.
#include <algorithm>
#include <utility>

#include "client/pool/engine.h"
#include "client/pool/size_class.h"
#include "common/bytes.h"

namespace gpumem::internal {
namespace {

// Poll interval for events without notification: the end of GPU work, a raised limit, a daemon.
constexpr absl::Duration kLookEvery = absl::Milliseconds(50);

}  // namespace

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

// --- Revocation ----------------------------------------------------------------------

bool Engine::HasAny(absl::Span<const uint64_t> ids) const {
  if (!CheckProcess().ok()) return false;
  absl::MutexLock lock(&mutex_);
  return std::any_of(segments_.begin(), segments_.end(), [ids](const auto& entry) {
    return std::find(ids.begin(), ids.end(), entry.second.id) != ids.end();
  });
}

void Engine::GiveAll() {
  if (!CheckProcess().ok()) return;
  caching_ = false;
  SetThreshold(0);
  FreeAllBlocks(std::nullopt).IgnoreError();
}

}  // namespace gpumem::internal
