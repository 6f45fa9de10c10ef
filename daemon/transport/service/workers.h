// SPDX-License-Identifier: Apache-2.0
// Threads for work that may block. More are started while all are busy, up to a bound; further work
// queues.
#pragma once

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace gpumemd {

// Thread-safe.
class Workers {
 public:
  // `max_threads` is at least one. The constructor starts the first thread, so that work proceeds
  // even if no other can start.
  explicit Workers(size_t max_threads);
  // Blocks until all submitted work is done.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Queues `work`. Starts at most one thread however often it is called: started threads check
  // whether there is work for more. So it may be called many times in a row under a lock.
  void Run(absl::AnyInvocable<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts a thread if there is work that no thread is about to take.
  void StartOneForWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_threads_;
  absl::Mutex mutex_;
  absl::CondVar given_;
  std::deque<absl::AnyInvocable<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;      // waiting for work, or about to wake
  size_t starting_ ABSL_GUARDED_BY(mutex_) = 0;  // yet to look for work
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumemd
