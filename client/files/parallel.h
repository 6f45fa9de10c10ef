// SPDX-License-Identifier: Apache-2.0
// Work of several threads that ends with the first error.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace gpumem::internal {

class Parallel {
 public:
  // Threads of one Run, at most.
  static constexpr int kMaxThreads = 24;

  // Calls `work` once in each thread, and blocks until all have returned. Meanwhile the calling
  // thread calls `poll` several times a second, and once at the end. Returns the first error of
  // either; `work` should return early once stopped(). `jobs`: more threads are pointless.
  absl::Status Run(size_t jobs, absl::FunctionRef<absl::Status()> work,
                   absl::FunctionRef<absl::Status()> poll) {
    // One request at a time does not saturate a fast disk.
    constexpr int kMinThreads = 4;
    constexpr absl::Duration kBetweenPolls = absl::Milliseconds(50);
    const int wanted =
        std::clamp(static_cast<int>(std::thread::hardware_concurrency()), kMinThreads, kMaxThreads);
    const size_t count = std::min(static_cast<size_t>(wanted), jobs);
    {
      absl::MutexLock lock(&mutex_);
      running_ = count;
    }
    std::vector<std::thread> threads;
    for (size_t i = 0; i < count; ++i) threads.emplace_back([&] { End(work()); });
    bool more = true;
    while (more) {
      {
        absl::MutexLock lock(&mutex_);
        const auto ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
        more = !mutex_.AwaitWithTimeout(absl::Condition(&ended), kBetweenPolls);
      }
      if (absl::Status status = poll(); !status.ok()) Fail(std::move(status));
    }
    for (std::thread& thread : threads) thread.join();
    absl::MutexLock lock(&mutex_);
    return status_;
  }

  bool stopped() const { return stopped_; }

 private:
  void Fail(absl::Status status) {
    stopped_ = true;
    absl::MutexLock lock(&mutex_);
    status_.Update(std::move(status));
  }
  void End(absl::Status status) {
    if (!status.ok()) Fail(std::move(status));
    absl::MutexLock lock(&mutex_);
    --running_;
  }

  std::atomic<bool> stopped_ = false;
  absl::Mutex mutex_;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // the first error
};

}  // namespace gpumem::internal
