// SPDX-License-Identifier: Apache-2.0
// The threads that serve gRPC's callback methods, in place of gRPC's own.
//
// gRPC 1.51 serves them with half as many threads as processors. While one of them waits for
// sockets, the others wait for their turn. Each event wakes two: one that handles it, and one that
// waits for sockets meanwhile. All wake every second, and then sleep for 100 ms, in which a call
// may find none that waits for it. No option changes this. So this library defines
// grpc::CompletionQueue::CallbackAlternativeCQ(), with which gRPC starts its threads, and all else
// that gRPC's source file (completion_queue_cc.cc) defines: the linker finds a program's
// definitions first. It is also there for the static library, of which that file then is no part.
//
// Here one thread waits for sockets and runs the callbacks of the calls that have come, one after
// the other, without handing anything to another thread. More threads join
//   - if the thread is busy (load.h): as many as gRPC would have;
//   - if a callback takes longer than kPatience, or a LongWork longer than
//     LongWork::kPatience. Threads that do nothing else watch for that.
// They leave when they have little to do. Without calls no thread wakes.
//
// While one thread is alone, it spins before it sleeps (common/spin/spin.h).
#pragma once

#include "absl/time/time.h"
#include "common/spin/spin.h"

namespace gpumemd {

// How long a callback runs, at least, until another thread takes over the sockets;
// twice as long at most.
inline constexpr absl::Duration kPatience = absl::Milliseconds(10);

// Sets how the threads spin, and keeps one of them as long as the process runs. Call before the
// first gRPC server; a later call has no effect. Without a call the threads do not spin, and end
// with the last server.
void StartCallbackThreads(gpumem::SpinOptions spin);

// True on one of these threads while no other serves the queue.
bool IsOnlyCallbackThread();

// A work on this thread, which is one of them, that may take long. One at a time in a process.
class LongWork {
 public:
  // How long it may keep what comes waiting.
  static constexpr absl::Duration kPatience = absl::Microseconds(300);

  // `watched`: another thread takes over the sockets once the work has taken kPatience. This costs
  // up to 10 µs (Alarm). Otherwise one takes over as for any callback.
  explicit LongWork(bool watched);
  ~LongWork();
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;
};

struct CallbackThreadsStats {
  int polling = 0;       // threads that serve the queue
  int waiting = 0;       // of them, those that wait for sockets
  absl::Duration spun;   // by all, since the start
  uint64_t called = 0;   // how often a thread joined
  uint64_t rescued = 0;  // of them, since a callback took too long
};
CallbackThreadsStats GetCallbackThreadsStats();

}  // namespace gpumemd
