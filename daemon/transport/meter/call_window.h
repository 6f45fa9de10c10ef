// How many calls of one uid and tenant are worked on at a time.
//
// HTTP/2 bounds the calls of each connection. With many connections a peer could yet have ten
// thousand calls in front of all others', seconds of work. So no more of them are received than a
// window of calls; further ones wait in the sockets of those who make them. While others make
// calls, too, the window is small: what keeps the processors busy, and no more than a moment's work
// for those others to wait for.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace gpumemd {

struct CallWindowOptions {
  // Twice as many as there are processors; four at least.
  static uint64_t Share();

  uint64_t max_calls = Share();
  uint64_t max_calls_alone = 256;  // while nobody else makes any
  // A call that has not been answered for so long is taken to wait for something, or to be on its
  // way on a device, and leaves the window: requests for memory that is not free yet, and watches.
  absl::Duration patience = absl::Milliseconds(20);
};

// Of the connections of one uid and tenant, named by their sockets. Thread-safe. `now` is of any
// clock, the same for all functions.
class CallWindow {
 public:
  // `on_held` is called when a socket is held and none was before. It may take no lock under which
  // functions of this, or of metered_sockets.h, are called.
  explicit CallWindow(const CallWindowOptions& options, std::function<void()> on_held = nullptr);

  // As many more calls may be received, or more: some that wait may not have left it yet. Costs no
  // lock.
  uint64_t room() const {
    const uint64_t count = count_.load(std::memory_order_acquire);
    const uint64_t most = max_calls_.load(std::memory_order_relaxed);
    return most - std::min(most, count);
  }
  // Whether others make calls, too. They do at first.
  void SetAlone(bool alone) { max_calls_ = alone ? options_.max_calls_alone : options_.max_calls; }
  // True if calls may be received. If not, `socket` is held until NextToRead() returns it.
  bool MayReceive(int socket, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // The requests of as many calls were received whole. There may be more at once than there is room
  // for.
  void Received(uint64_t calls, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // As many calls were answered: the oldest ones, for all that is known here.
  void Answered(uint64_t calls, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

  // Once half the window is free, the socket that has been held for the longest time. To be called
  // after Received() and Answered(), when a socket is closed, and from time to time. Costs no lock
  // where none is held.
  std::optional<int> NextToRead(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  bool any_held() const { return any_held_; }

  // All calls that Received() was told of.
  uint64_t received() const { return received_; }

 private:
  struct Calls {
    absl::Time since;
    uint64_t count;
  };

  void ForgetThoseThatWait(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CallWindowOptions options_;
  const std::function<void()> on_held_;
  std::atomic<uint64_t> max_calls_;
  std::atomic<uint64_t> received_ = 0;
  absl::Mutex mutex_;
  std::deque<Calls> calls_ ABSL_GUARDED_BY(mutex_);  // in the window, by age
  std::atomic<uint64_t> count_ = 0;                  // of all of them; written under mutex_
  std::deque<int> held_ ABSL_GUARDED_BY(mutex_);     // each once
  std::atomic<bool> any_held_ = false;               // written under mutex_
};

}  // namespace gpumemd
