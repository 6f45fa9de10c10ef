// How many calls of one uid and tenant are worked on at a time.
//
// HTTP/2 bounds the calls of each connection. With many connections a peer could yet have ten
// thousand calls in front of all others', seconds of work. So no more of them are received than a
// window of calls; further ones wait in the sockets of those who make them. The window is as large
// as it takes to keep the daemon busy, so that nobody who has the machine to himself is slower.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace gpumemd {

struct CallWindowOptions {
  uint64_t max_calls = 256;
  // A call that has not been answered for so long is taken to wait for something, and leaves the
  // window: requests for memory that is not free yet, and watches.
  absl::Duration patience = absl::Milliseconds(100);
};

// Of the connections of one uid and tenant, named by their sockets. Thread-safe. `now` is of any
// clock, the same for all functions.
class CallWindow {
 public:
  explicit CallWindow(const CallWindowOptions& options);

  // False: MayReceive() would be true. Costs no lock.
  bool full() const { return full_.load(std::memory_order_acquire); }
  // True if more calls may be received. If not, `socket` is held: Answered() will return it.
  bool MayReceive(int socket, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // The requests of as many calls were received whole. There may be more at once than the window
  // has room for.
  void Received(uint64_t calls, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // As many calls were answered: the oldest ones, for all that is known here. Once half the window
  // is free, returns all sockets that are held, which are held no longer. To be called from time to
  // time without any, for the calls that wait.
  [[nodiscard]] std::vector<int> Answered(uint64_t calls, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Calls {
    absl::Time since;
    uint64_t count;
  };

  void ForgetThoseThatWait(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CallWindowOptions options_;
  // As count_ >= max_calls, for a look without the mutex.
  std::atomic<bool> full_ = false;
  absl::Mutex mutex_;
  std::deque<Calls> calls_ ABSL_GUARDED_BY(mutex_);  // in the window, by age
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;       // of all of them
  absl::flat_hash_set<int> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumemd
