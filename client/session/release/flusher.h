// SPDX-License-Identifier: Apache-2.0
// The thread of a session that sends its asynchronous releases (ReleaseQueue), and the process's
// sessions that have one. A session has none before its first asynchronous release.
#pragma once

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace gpumem::internal {

class Session;

// Thread-safe.
class Flusher {
 public:
  // `session` owns this.
  explicit Flusher(Session* session) : session_(*session) {}
  // Requires Stop(), if it was started.
  ~Flusher() = default;
  Flusher(const Flusher&) = delete;
  Flusher& operator=(const Flusher&) = delete;

  // Starts the thread, if it does not run. False if the system refuses a further thread.
  bool Start();
  // Ends the thread; waits for a flush in progress.
  void Stop();

  // Sends the releases of this process's other sessions with the same daemon. A program takes its
  // sessions for one: memory that one of them has released is free for the others.
  static void FlushOthers(const Session& session);

 private:
  void Run();

  Session& session_;
  std::atomic<bool> started_ = false;
  absl::Mutex mutex_;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::internal
