// SPDX-License-Identifier: Apache-2.0
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

// Of a small block that serves a smaller request: it is a quarter larger at most, above 8 KiB.
constexpr int kLargerClasses = 2;

// Poll interval for events without notification: the end of GPU work, a raised limit, a daemon.
constexpr absl::Duration kLookEvery = absl::Milliseconds(50);

}  // namespace

// One call of AllocateFromHeaps. If the heaps lack memory, it takes the steps that may provide
// some, the cheapest first, and begins again after each. A step is taken once; all of them may be
// taken again when the program or a wait provided memory.
class Engine::Allocation {
 public:
  Allocation(Engine& engine, uint64_t bytes, uint64_t rounded, Stream stream)
      : engine_(engine),
        deadline_(absl::Now() + engine.options_.wait),
        wanted_{.bytes = bytes, .rounded = rounded, .stream = stream} {}

  absl::StatusOr<Block> Run() ABSL_LOCKS_EXCLUDED(engine_.mutex_);

 private:
  // Releases the engine's lock for a scope.
  class ABSL_SCOPED_LOCKABLE Unlocked {
   public:
    explicit Unlocked(absl::Mutex* mutex) ABSL_UNLOCK_FUNCTION(mutex) : mutex_(mutex) {
      mutex_->Unlock();
    }
    ~Unlocked() ABSL_UNLOCK_FUNCTION() { mutex_->Lock(); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    absl::Mutex* const mutex_;
  };

  // Takes a somewhat larger block that this thread caches: better than to put all of them back.
  Block UseLarger() ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_.mutex_);
  // From now on, this thread may allocate small blocks of the stream from its shard.
  void NoteStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_.mutex_);
  // Puts back the large blocks that this thread caches: they may adjoin free memory.
  void JoinOwnLarge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_.mutex_);

  // The steps. Each returns true if it was taken: memory may have become available. Each releases
  // the lock meanwhile.
  bool CollectOwnCache() ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_.mutex_);
  // Only if the threads cache much: collecting disturbs them.
  bool CollectLargeCaches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_.mutex_);
  bool CollectAllCaches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_.mutex_);
  // For a block of any stream: blocks until the streams' work is done.
  bool SynchronizeStreams() ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_.mutex_);
  // Gives free segments back if a quota, the device or the limit refused.
  bool ReleaseFreeSegments(const absl::Status& refusal)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_.mutex_);
  // Blocks while another thread holds blocks that it is about to put back.
  bool AwaitPutBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_.mutex_);
  // True if the program's callback asks to try again.
  bool AskProgram() ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_.mutex_);
  // True if the refusal may end before the deadline.
  bool MayWait(const absl::Status& refusal) const;

  Engine& engine_;
  const absl::Time deadline_;
  Wanted wanted_;
  // The steps taken since memory last became available.
  struct Taken {
    bool own_cache = false;
    bool all_caches = false;
    bool streams = false;
    bool segments = false;
    bool put_back = false;
  };
  Taken taken_;
};

absl::StatusOr<Block> Engine::AllocateFromHeaps(uint64_t bytes, Stream stream) {
  const uint64_t rounded = RoundedBytes(bytes);
  if (rounded < bytes || !gpumem::RoundUp(rounded, source_->granularity()).ok()) {
    return absl::InvalidArgumentError("no device has that many bytes");
  }
  return Allocation(*this, bytes, rounded, stream).Run();
}

absl::StatusOr<Block> Engine::Allocation::Run() {
  absl::MutexLock lock(&engine_.mutex_);
  absl::StatusOr<Timeline*> timeline = engine_.order_.Get(wanted_.stream);
  if (!timeline.ok()) return timeline.status();
  wanted_.timeline = *timeline;
  NoteStream();
  JoinOwnLarge();
  while (true) {
    if (engine_.stage_ != Stage::kRunning) return SuspendedError();
    if (Chunk* const chunk = engine_.TakeKnown(wanted_.rounded, wanted_.timeline)) {
      return engine_.HandOut(chunk, wanted_.bytes, wanted_.stream);
    }
    if (Block block = UseLarger(); block.data != nullptr) return block;
    if (Chunk* const chunk = engine_.TakeFor(wanted_.rounded, wanted_.timeline)) {
      return engine_.HandOut(chunk, wanted_.bytes, wanted_.stream);
    }
    if (CollectOwnCache() || CollectLargeCaches()) continue;
    const absl::Status grown = engine_.Grow(wanted_.rounded, wanted_.timeline);
    if (grown.ok() || CollectAllCaches()) continue;
    // Memory may have returned meanwhile.
    if (Block block = engine_.TakeOrNone(wanted_); block.data != nullptr) return block;
    if (SynchronizeStreams() || ReleaseFreeSegments(grown) || AwaitPutBack()) continue;
    if (AskProgram()) {
      taken_ = {};
      continue;
    }
    if (MayWait(grown)) {
      if (Block block = engine_.Await(wanted_, grown, deadline_); block.data != nullptr) {
        return block;
      }
      taken_ = {};
      continue;
    }
    ++engine_.counts_.out_of_memory;
    return grown;
  }
}

void Engine::Allocation::NoteStream() {
  ThreadCache* const cache = engine_.Caching() ? engine_.KnownCacheOfThisThread() : nullptr;
  if (cache == nullptr || !IsSmall(wanted_.rounded) || wanted_.stream == AnyStream()) return;
  const std::lock_guard<OwnerLock> lock(cache->lock);
  cache->Add(wanted_.stream, wanted_.timeline);
}

void Engine::Allocation::JoinOwnLarge() {
  if (IsSmall(wanted_.rounded) || engine_.large_.HasCloseFit(wanted_.rounded, wanted_.timeline)) {
    return;
  }
  const Unlocked unlocked(&engine_.mutex_);
  engine_.CollectOwnLarge(wanted_.stream);
}

Block Engine::Allocation::UseLarger() {
  if (!IsSmall(wanted_.rounded) || !engine_.Caching()) return {};
  return AllocateFromCache(engine_.KnownCacheOfThisThread(), wanted_.bytes, wanted_.stream,
                           kLargerClasses);
}

bool Engine::Allocation::CollectOwnCache() {
  if (std::exchange(taken_.own_cache, true)) return false;
  const Unlocked unlocked(&engine_.mutex_);
  engine_.CollectOwn();
  return true;
}

bool Engine::Allocation::CollectLargeCaches() {
  if (taken_.all_caches || engine_.growing_ ||
      engine_.KeptBytes() <= engine_.reserved_bytes_ / kKeptPart) {
    return false;
  }
  return CollectAllCaches();
}

bool Engine::Allocation::CollectAllCaches() {
  if (std::exchange(taken_.all_caches, true)) return false;
  const Unlocked unlocked(&engine_.mutex_);
  engine_.CollectKept(nullptr, /*forget=*/false);
  return true;
}

bool Engine::Allocation::SynchronizeStreams() {
  if (wanted_.timeline->stream() != AnyStream() || std::exchange(taken_.streams, true)) {
    return false;
  }
  {
    const Unlocked unlocked(&engine_.mutex_);
    engine_.WaitForOwners(nullptr).IgnoreError();  // of all streams that permit it
  }
  engine_.PollAll(nullptr, Polled::kAll);
  return true;
}

bool Engine::Allocation::ReleaseFreeSegments(const absl::Status& refusal) {
  if (!absl::IsResourceExhausted(refusal) || std::exchange(taken_.segments, true)) return false;
  const std::vector<Segment> released = engine_.Shrink(0);
  {
    const Unlocked unlocked(&engine_.mutex_);
    engine_.ReleaseAll(released).IgnoreError();
  }
  engine_.AwaitReleases();
  return true;  // even without a release: polling has joined free memory
}

bool Engine::Allocation::AwaitPutBack() {
  const auto none_moves = [this] { return engine_.moving_.IsZero(); };
  if (std::exchange(taken_.put_back, true)) return false;
  ++engine_.watching_;
  const bool moves = !none_moves();
  if (moves) engine_.mutex_.AwaitWithTimeout(absl::Condition(&none_moves), absl::Milliseconds(100));
  --engine_.watching_;
  return moves;
}

bool Engine::Allocation::AskProgram() {
  const auto callback = engine_.out_of_memory_;
  if (!callback) return false;
  const Unlocked unlocked(&engine_.mutex_);
  return callback(wanted_.bytes);
}

bool Engine::Allocation::MayWait(const absl::Status& refusal) const {
  return absl::Now() < deadline_ &&
         (absl::IsResourceExhausted(refusal) || absl::IsUnavailable(refusal));
}

Block Engine::Await(const Wanted& wanted, const absl::Status& refusal, absl::Time deadline) {
  if (stage_ != Stage::kRunning) return {};
  ++waiting_;  // threads cache nothing while this is above 0
  ++watching_;
  const uint64_t seen = returns_;
  // A shard may have got memory before other threads could see that this one waits.
  Block block = TakeOrNone(wanted);
  const absl::Time began = absl::Now();
  // While the daemon is gone, polls for it.
  if (block.data == nullptr && absl::IsResourceExhausted(refusal)) {
    block = AwaitDaemon(wanted, deadline);
  }
  // The daemon refused to let it wait: that may pass, and other threads may free memory here.
  if (block.data == nullptr && absl::Now() < began + kLookEvery) {
    const auto returned = [this, seen]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return returns_ != seen; };
    mutex_.AwaitWithDeadline(absl::Condition(&returned), std::min(deadline, began + kLookEvery));
  }
  --watching_;
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
    return block.data != nullptr || suspended();
  };
  mutex_.Unlock();
  const absl::StatusOr<SegmentSource::Range> range = source_->AcquireWaiting(
      hole.bytes, hole.at, deadline - absl::Now(), {.interrupt = interrupt, .look = look});
  mutex_.Lock();
  awaiting_.erase(std::find(awaiting_.begin(), awaiting_.end(), interrupt));
  if (!range.ok()) return block;
  const uint64_t room = limit_ - std::min(limit_, reserved_bytes_);
  if (block.data == nullptr && range->bytes <= room && stage_ == Stage::kRunning) {
    Adopt({&*range, 1});
    return TakeOrNone(wanted);  // before any other thread sees it
  }
  // It was served here at the same moment, the limit was lowered or reached, or the pool was
  // suspended.
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
  if (stage_ != Stage::kRunning) return {};
  Chunk* chunk = TakeKnown(wanted.rounded, wanted.timeline);
  if (chunk == nullptr) chunk = TakeFor(wanted.rounded, wanted.timeline);
  if (chunk == nullptr && policy_.allow_internal_dependencies) {
    chunk = TakeByWaiting(wanted.rounded, wanted.timeline, /*coupled_only=*/false);
  }
  return chunk == nullptr ? Block{} : HandOut(chunk, wanted.bytes, wanted.stream);
}

}  // namespace gpumem::internal
