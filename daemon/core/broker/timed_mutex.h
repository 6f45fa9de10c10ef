// SPDX-License-Identifier: Apache-2.0
// A mutex that measures how long it is held: for the metrics, and for tests that bound it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/trace/span.h"
#include "daemon/core/broker/threads.h"
#include "daemon/core/latency.h"

namespace gpumemd {

struct HoldTimes {
  LatencyCounts holds;
  absl::Duration longest;
};

// As absl::Mutex, held by one thread at a time. A wait for a condition ends a hold and begins
// another. Each hold reads the clock twice.
template <typename Clock>
class ABSL_LOCKABLE BasicTimedMutex {
 public:
  // `threads`: whose threads wait for conditions; null: the system's. Must outlive this.
  explicit BasicTimedMutex(Threads* threads = nullptr) : threads_(threads) {}

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (gpumem::trace::IsOn()) [[unlikely]] {
      LockTraced();
    } else {
      mutex_.Lock();
    }
    since_ = Clock::now();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    Count();
    mutex_.Unlock();
  }

  // Requires that the caller holds the mutex.
  void Await(const absl::Condition& condition) {
    AwaitWithDeadline(condition, absl::InfiniteFuture());
  }
  bool AwaitWithTimeout(const absl::Condition& condition, absl::Duration timeout) {
    if (threads_ != nullptr) return AwaitWithDeadline(condition, threads_->Now() + timeout);
    if (condition.Eval()) return true;
    Count();
    const bool met = mutex_.AwaitWithTimeout(condition, timeout);
    since_ = Clock::now();
    return met;
  }
  bool AwaitWithDeadline(const absl::Condition& condition, absl::Time deadline) {
    if (condition.Eval()) return true;
    Count();
    const bool met = threads_ == nullptr ? mutex_.AwaitWithDeadline(condition, deadline)
                                         : threads_->Await(mutex_, condition, deadline);
    since_ = Clock::now();
    return met;
  }

  // Returns the times of all holds that have ended. Does not lock the mutex.
  HoldTimes Read() const {
    return {holds_.Read(), absl::Nanoseconds(longest_ns_.load(std::memory_order_relaxed))};
  }

 private:
  void LockTraced() ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex_) {
    if (mutex_.TryLock()) return;
    const gpumem::trace::Span wait("lock wait");
    mutex_.Lock();
  }

  void Count() {
    const int64_t ns =
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - since_).count();
    holds_.Observe(absl::Nanoseconds(ns));
    if (ns > longest_ns_.load(std::memory_order_relaxed)) {
      longest_ns_.store(ns, std::memory_order_relaxed);
    }
  }

  Threads* const threads_;
  absl::Mutex mutex_;
  typename Clock::time_point since_{};  // of the present hold; under mutex_
  LatencyHistogram holds_;
  std::atomic<int64_t> longest_ns_ = 0;  // written under mutex_
};

using TimedMutex = BasicTimedMutex<std::chrono::steady_clock>;

// Holds the mutex for its lifetime.
template <typename Clock>
class ABSL_SCOPED_LOCKABLE BasicTimedLock {
 public:
  explicit BasicTimedLock(BasicTimedMutex<Clock>* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_->Lock();
  }
  ~BasicTimedLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  BasicTimedLock(const BasicTimedLock&) = delete;
  BasicTimedLock& operator=(const BasicTimedLock&) = delete;

 private:
  BasicTimedMutex<Clock>* const mutex_;
};

using TimedLock = BasicTimedLock<std::chrono::steady_clock>;

}  // namespace gpumemd
