// SPDX-License-Identifier: Apache-2.0
// Decides when a session tells the daemon of leases that it gave up without a call: asynchronous
// releases. LeaseBook has the leases; this has their number, the time at which they are due, and
// whether a flush of them is in progress.
//
// Every call of the session flushes first. A flush begins with TakeAll(), which waits for a flush
// in progress. So a call finds the daemon in the state that the program has seen. For leases that
// no call follows, a thread waits in AwaitDue() and flushes them after the linger. It sleeps
// without a deadline while there is nothing to flush.
//
// Times are nanoseconds of the node's clock (NodeClockNs).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace gpumem::internal {

// The rules, without locks or a clock: `now` must not go back.
class ReleaseTimer {
 public:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

  struct Limits {
    // The longest time from a release to its flush, unless a call comes first.
    uint64_t linger_ns = 500'000;
    // So many leases or bytes are flushed at once. A larger batch saves no more, since a lease
    // costs the daemon more than its share of a call then. Much memory is not held back: to unmap
    // it takes longer than a call does.
    size_t most_leases = 512;
    uint64_t most_bytes = uint64_t{256} << 20;
    // The thread stays awake so long after a release: programs release in bursts, and waking a
    // thread costs the caller more than all the rest.
    uint64_t awake_ns = 2'000'000;
    // Until a flush that failed is repeated: twice as long each time.
    uint64_t first_retry_ns = 10'000'000;
    uint64_t longest_retry_ns = 1'000'000'000;
  };

  explicit ReleaseTimer(const Limits& limits) : limits_(limits) {}

  // Counts a release of some leases. True if the thread must be woken for it.
  bool Add(size_t leases, uint64_t bytes, uint64_t now);
  // Makes releases due at once until then: others wait for memory. True as Add().
  bool Hurry(uint64_t until, uint64_t now);

  // Begins a flush of all that was added, and returns how many releases had ever been.
  uint64_t TakeAll();
  // Ends a flush. `sent` false: the releases that TakeAll() has counted are still to be sent, and
  // are due again after a pause. True as Add().
  bool Done(uint64_t taken, bool sent, uint64_t now);

  // How many releases there have ever been, and how many of them are known to have arrived.
  uint64_t added() const { return added_; }
  uint64_t sent() const { return sent_; }
  bool unsent() const { return sent_ < added_; }
  // When a flush is due; kNever: nothing is.
  uint64_t due() const { return due_; }

  // Returns until when the thread sleeps, and records that; kNever: until it is woken.
  uint64_t Sleep(uint64_t now);
  // Records that the thread is awake. It calls Sleep() before it sleeps again.
  void Wake() { wakes_ = 0; }

 private:
  // True if the thread sleeps for too long. Records that it is woken.
  bool MustWake(uint64_t now);

  const Limits limits_;
  uint64_t added_ = 0;  // releases, ever
  uint64_t sent_ = 0;
  size_t queued_ = 0;  // leases, since the last flush began
  uint64_t queued_bytes_ = 0;
  uint64_t due_ = kNever;
  uint64_t retry_after_ = 0;
  uint64_t next_retry_ = 0;  // how long after the next flush that fails; 0: as after the first
  uint64_t hurried_until_ = 0;
  uint64_t awake_until_ = 0;
  uint64_t wakes_ = 0;  // when the thread's sleep ends; 0: it is awake
};

// Thread-safe.
class ReleaseQueue {
 public:
  explicit ReleaseQueue(const ReleaseTimer::Limits& limits = {}) : timer_(limits) {}
  ~ReleaseQueue();
  ReleaseQueue(const ReleaseQueue&) = delete;
  ReleaseQueue& operator=(const ReleaseQueue&) = delete;

  // A flush of all releases that were added before. Other flushes wait for its end.
  class Flush {
   public:
    Flush(Flush&& other) noexcept : queue_(other.queue_), taken_(other.taken_) {
      other.queue_ = nullptr;
    }
    Flush& operator=(Flush&&) = delete;
    // As Done(false), unless Done() was called.
    ~Flush() {
      if (queue_ != nullptr) Done(/*sent=*/false);
    }
    // Ends the flush. `sent`: the daemon has answered for all of them, or they have ended
    // otherwise. Else they are still to be sent, and are due again after a pause.
    void Done(bool sent);

   private:
    friend class ReleaseQueue;
    Flush(ReleaseQueue* queue, uint64_t taken) : queue_(queue), taken_(taken) {}
    ReleaseQueue* queue_;
    uint64_t taken_;
  };

  // Call when the book has the leases. Wakes the thread if it must.
  void Add(size_t leases, uint64_t bytes);
  // For so long releases are due at once: others wait for memory.
  void Hurry(absl::Duration time);

  // True if a release is not known to have arrived. Costs a load.
  bool unsent() const { return unsent_.load(std::memory_order_acquire); }
  // True if that is so for any queue of the process.
  static bool AnyUnsent() { return unsent_queues_.load(std::memory_order_acquire) > 0; }

  // Waits for the flush in progress, until the deadline, unless all that was added before this call
  // has arrived, or that flush is the caller's thread's. Returns a flush, if there is anything left
  // to flush and none is in progress.
  std::optional<Flush> TakeAll(absl::Time deadline);

  // For the thread: blocks until a flush is due. False after Stop().
  bool AwaitDue();
  void Stop();

 private:
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  static std::atomic<int> unsent_queues_;

  absl::Mutex mutex_;
  absl::CondVar due_;    // the thread must look again
  absl::CondVar ended_;  // a flush has ended
  ReleaseTimer timer_ ABSL_GUARDED_BY(mutex_);
  bool flushing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread::id flushes_ ABSL_GUARDED_BY(mutex_);  // while flushing_
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> unsent_ = false;
};

}  // namespace gpumem::internal
