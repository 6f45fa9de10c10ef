// SPDX-License-Identifier: Apache-2.0
// For tests of the pool's engine: segments that are mere addresses or plain memory.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/pool/segment_source.h"
#include "client/session/interrupt.h"
#include "gpumem/suspend.h"

namespace gpumem::internal {

// Thread-safe.
class FakeSegments : public SegmentSource {
 public:
  struct Options {
    uint64_t capacity = uint64_t{1} << 40;
    bool places = true;
    bool memory = false;  // true: real memory; false: addresses that must not be touched
    // Called for addresses whose memory is released or moved.
    std::function<void(uintptr_t at, uint64_t bytes)> unmapped = [](uintptr_t, uint64_t) {};
  };
  static constexpr uint64_t kGranule = uint64_t{2} << 20;

  explicit FakeSegments(Options options) : options_(options) {}
  ~FakeSegments() override {
    for (const auto& [id, range] : leased_) Unmap(range);
  }

  uint64_t granularity() const override { return kGranule; }
  bool places() const override { return options_.places; }

  absl::StatusOr<std::vector<Range>> Acquire(uint64_t bytes, uint64_t count, uintptr_t at,
                                             bool wish) override {
    absl::MutexLock lock(&mutex_);
    return AcquireLocked(bytes, count, at, wish);
  }

  // Serves any waiter once there is enough; calls `look` when nudged, and periodically only after
  // SetLooks().
  absl::StatusOr<Range> AcquireWaiting(uint64_t bytes, uintptr_t at, absl::Duration wait,
                                       const Disturbance& disturbance) override {
    const absl::Time deadline = absl::Now() + wait;
    bool nudged = true;
    const Interrupt::Listener listener(disturbance.interrupt.get(), [&] {
      absl::MutexLock lock(&mutex_);
      nudged = true;
    });
    absl::MutexLock lock(&mutex_);
    ++waiters_;
    waits_.push_back(bytes);
    absl::StatusOr<Range> range = absl::ResourceExhaustedError("the daemon lets nobody wait");
    while (waiters_ <= max_waiters_) {
      const auto is_news = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return nudged || unavailable_ || leased_bytes_ + bytes <= options_.capacity;
      };
      const bool news = mutex_.AwaitWithDeadline(absl::Condition(&is_news),
                                                 std::min(deadline, absl::Now() + look_every_));
      if (leased_bytes_ + bytes <= options_.capacity || unavailable_ || absl::Now() >= deadline) {
        auto ranges = AcquireLocked(bytes, 1, at, /*wish=*/false);
        range = ranges.ok() ? absl::StatusOr<Range>(ranges->front()) : ranges.status();
        break;
      }
      if (!news && look_every_ == absl::InfiniteDuration()) continue;
      nudged = false;
      mutex_.Unlock();
      const bool enough = disturbance.look();
      mutex_.Lock();
      if (!enough) continue;
      // As a daemon that grants at the same moment.
      range = absl::CancelledError("");
      if (grants_too_late_) {
        options_.capacity += bytes;
        range = AcquireLocked(bytes, 1, at, /*wish=*/false)->front();
      }
      break;
    }
    --waiters_;
    return range;
  }

 private:
  absl::StatusOr<std::vector<Range>> AcquireLocked(uint64_t bytes, uint64_t count, uintptr_t at,
                                                   bool wish)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (unavailable_) return absl::UnavailableError("the daemon is gone");
    if (bytes % kGranule != 0) return absl::InternalError("not a multiple of the granularity");
    if (leased_bytes_ + bytes * count > options_.capacity) {
      if (!wish) pressed_bytes_ = std::max(pressed_bytes_, bytes * count);
      return absl::ResourceExhaustedError("the quota stands in the way");
    }
    if (at != 0 && (IsTaken(at, bytes * count) || options_.memory)) {
      return absl::FailedPreconditionError("the address is taken");
    }
    std::vector<Range> ranges;
    if (options_.memory) {
      void* const memory = mmap(nullptr, bytes * count, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) return absl::ResourceExhaustedError("mmap");
      at = reinterpret_cast<uintptr_t>(memory);
    }
    for (uint64_t i = 0; i < count; ++i) {
      Range range{.id = ++last_id_, .at = at == 0 ? next_at_ : at, .bytes = bytes};
      at = range.at + bytes;
      leased_[range.id] = range;
      leased_bytes_ += bytes;
      next_at_ = std::max(next_at_, range.at + bytes + (uint64_t{1} << 36));
      ranges.push_back(range);
    }
    return ranges;
  }

 public:
  absl::Status Move(absl::Span<const uint64_t> ids, uintptr_t at) override {
    absl::MutexLock lock(&mutex_);
    uint64_t bytes = 0;
    for (uint64_t id : ids) {
      const auto found = leased_.find(id);
      if (found == leased_.end()) return absl::InternalError("moved what is not leased");
      bytes += found->second.bytes;
    }
    if (IsTaken(at, bytes)) return absl::FailedPreconditionError("the address is taken");
    if (moves_left_ == 0) return absl::InternalError("the driver refuses");
    --moves_left_;
    for (uint64_t id : ids) {
      Range& range = leased_[id];
      options_.unmapped(range.at, range.bytes);
      range.at = at;
      at += range.bytes;
    }
    return absl::OkStatus();
  }

  absl::Status Suspend(absl::Span<const uint64_t> ids, const SuspendOptions& options) override {
    absl::Status status = options.quiesce ? options.quiesce() : absl::OkStatus();
    if (status.ok()) status = Carry(ids, /*suspended=*/true);
    return status;
  }
  absl::Status Resume(absl::Span<const uint64_t> ids, const ResumeOptions&) override {
    return Carry(ids, /*suspended=*/false);
  }
  bool AnySuspended(absl::Span<const uint64_t> ids) const override {
    absl::MutexLock lock(&mutex_);
    return std::any_of(ids.begin(), ids.end(),
                       [this](uint64_t id) { return suspended_.contains(id); });
  }

  absl::Status Release(uint64_t id) override {
    absl::MutexLock lock(&mutex_);
    const auto found = leased_.find(id);
    if (found == leased_.end()) return absl::InternalError("released twice");
    if (carried_.contains(id)) ++violations_;
    suspended_.erase(id);
    leased_bytes_ -= found->second.bytes;
    options_.unmapped(found->second.at, found->second.bytes);
    Unmap(found->second);
    leased_.erase(found);
    return unavailable_ ? absl::UnavailableError("the daemon is gone") : absl::OkStatus();
  }

  absl::StatusOr<std::pair<uint64_t, uint64_t>> Room() override {
    absl::MutexLock lock(&mutex_);
    return std::pair(options_.capacity - leased_bytes_, options_.capacity);
  }
  absl::StatusOr<std::string> Share(uint64_t id) override { return absl::StrCat("ticket", id); }

  // `during` is called while segments are suspended or resumed, and its error is the answer.
  // `partly`: after an error of Suspend the first segment stays suspended.
  void SetDuring(std::function<absl::Status()> during, bool partly = false) {
    absl::MutexLock lock(&mutex_);
    during_ = std::move(during);
    partly_ = partly;
  }
  // The suspended segments.
  size_t suspended() const {
    absl::MutexLock lock(&mutex_);
    return suspended_.size();
  }
  // How often a segment was released while it was being suspended or resumed.
  int violations() const {
    absl::MutexLock lock(&mutex_);
    return violations_;
  }

  void SetUnavailable(bool unavailable) {
    absl::MutexLock lock(&mutex_);
    unavailable_ = unavailable;
  }
  void SetCapacity(uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    options_.capacity = bytes;
  }
  // Blocks until that many threads wait.
  void AwaitWaiters(int count) const {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiters_ == count; };
    mutex_.Await(absl::Condition(&there));
  }
  void SetMaxWaiters(int count) {
    absl::MutexLock lock(&mutex_);
    max_waiters_ = count;
  }
  void SetLooks(absl::Duration every) {
    absl::MutexLock lock(&mutex_);
    look_every_ = every;
  }
  // Grants a request that is no longer wanted, beyond all capacity.
  void SetGrantsTooLate() {
    absl::MutexLock lock(&mutex_);
    grants_too_late_ = true;
  }
  // The bytes of each request that waited, in order.
  std::vector<uint64_t> waits() const {
    absl::MutexLock lock(&mutex_);
    return waits_;
  }
  // Lets the driver move that many times more.
  void SetMovesLeft(uint64_t moves) {
    absl::MutexLock lock(&mutex_);
    moves_left_ = moves;
  }
  // Makes this address unusable for placement.
  void TakeAddress(uintptr_t at) {
    absl::MutexLock lock(&mutex_);
    taken_.insert(at);
  }
  uint64_t leased_bytes() const {
    absl::MutexLock lock(&mutex_);
    return leased_bytes_;
  }
  // The largest denied request that was not a mere wish.
  uint64_t pressed_bytes() const {
    absl::MutexLock lock(&mutex_);
    return pressed_bytes_;
  }
  size_t segments() const {
    absl::MutexLock lock(&mutex_);
    return leased_.size();
  }

 private:
  absl::Status Carry(absl::Span<const uint64_t> ids, bool suspended) {
    std::function<absl::Status()> during;
    {
      absl::MutexLock lock(&mutex_);
      carried_.insert(ids.begin(), ids.end());
      during = during_;
    }
    absl::Status status = during ? during() : absl::OkStatus();
    absl::MutexLock lock(&mutex_);
    for (const uint64_t id : ids) {
      const bool moves = status.ok() || (suspended && partly_ && id == ids.front());
      if (moves && suspended != suspended_.contains(id)) Protect(id, suspended);
      carried_.erase(id);
    }
    return status;
  }
  void Protect(uint64_t id, bool suspended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    suspended ? (void)suspended_.insert(id) : (void)suspended_.erase(id);
    const Range& range = leased_.at(id);
    const int access = suspended ? PROT_NONE : PROT_READ | PROT_WRITE;
    if (options_.memory && mprotect(reinterpret_cast<void*>(range.at), range.bytes, access) != 0) {
      ++violations_;
    }
  }
  bool IsTaken(uintptr_t at, uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return taken_.contains(at) ||
           std::any_of(leased_.begin(), leased_.end(), [&](const auto& entry) {
             const Range& other = entry.second;
             return at < other.at + other.bytes && other.at < at + bytes;
           });
  }
  void Unmap(const Range& range) const {
    if (options_.memory) munmap(reinterpret_cast<void*>(range.at), range.bytes);
  }

  mutable absl::Mutex mutex_;
  Options options_;
  std::map<uint64_t, Range> leased_;
  std::set<uintptr_t> taken_;
  uint64_t leased_bytes_ = 0;
  uint64_t pressed_bytes_ = 0;
  uint64_t moves_left_ = UINT64_MAX;
  uint64_t last_id_ = 0;
  uintptr_t next_at_ = uint64_t{1} << 40;
  bool unavailable_ = false;
  int waiters_ = 0;
  int max_waiters_ = 1000;
  absl::Duration look_every_ = absl::InfiniteDuration();
  bool grants_too_late_ = false;
  std::vector<uint64_t> waits_;
  std::set<uint64_t> suspended_;
  std::set<uint64_t> carried_;  // by a Suspend or Resume under way
  std::function<absl::Status()> during_;
  bool partly_ = false;
  int violations_ = 0;
};

}  // namespace gpumem::internal
