// SPDX-License-Identifier: Apache-2.0
// Limits the calls of one uid and tenant that are in progress at a time.
//
// HTTP/2 bounds the calls of each connection. With many connections a peer could still queue ten
// thousand calls, seconds of work, ahead of all others. So no more calls are received than a window
// holds; further ones wait in the sockets of their clients. While others make calls too, the window
// is small: enough to keep the processors busy, and at most a moment's work for the others to wait
// for.
//
// In the same way a second window limits the open calls of connections that are being closed.
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
  // Twice the number of processors; at least four.
  static uint64_t Share();
  // Returns the window for open calls of connections that are being closed: some 4 ms of gRPC's
  // work.
  static CallWindowOptions OfEnds() {
    return {.max_calls = 32, .patience = absl::Milliseconds(100)};
  }

  uint64_t max_calls = Share();
  uint64_t max_calls_alone = 256;  // while no other window gets calls
  // A call unanswered for this long leaves the window. It is taken to wait (for memory that is not
  // free yet, or in a watch), or to be in progress on a device.
  absl::Duration patience = absl::Milliseconds(20);
};

// The connections of one uid and tenant, identified by their sockets. Thread-safe. `now` may be of
// any clock, the same for all functions.
class CallWindow {
 public:
  // `on_held` is called when a socket is held and none was before. It must not take a lock under
  // which functions of this class or of metered_sockets.h are called.
  explicit CallWindow(const CallWindowOptions& options, std::function<void()> on_held = nullptr);

  // Returns how many more calls may be received. A lower bound: some waiting calls may not have
  // left the window yet. Takes no lock.
  uint64_t room() const {
    const uint64_t count = count_.load(std::memory_order_acquire);
    const uint64_t most = max_calls_.load(std::memory_order_relaxed);
    return most - std::min(most, count);
  }
  // Sets whether this is the only window that gets calls. At first it is not.
  void SetAlone(bool alone) { max_calls_ = alone ? options_.max_calls_alone : options_.max_calls; }
  // True if calls may be received. If not, `socket` is held until NextToRead() returns it.
  bool MayReceive(int socket, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts calls whose requests were received whole. They may exceed the room.
  void Received(uint64_t calls, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts answered calls: assumed to be the oldest, since the window cannot tell.
  void Answered(uint64_t calls, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the socket that has been held longest, once half the window is free. Call it after
  // Received() and Answered(), when a socket is closed, and periodically. Takes no lock if none is
  // held.
  std::optional<int> NextToRead(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  bool any_held() const { return any_held_; }

  // Returns the total of calls passed to Received().
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
