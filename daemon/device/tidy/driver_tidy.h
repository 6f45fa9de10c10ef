// SPDX-License-Identifier: Apache-2.0
// Lets the driver do its bookkeeping of cleared memory while no request waits for it.
//
// NVIDIA's driver clears freed memory in the background. It takes the cleared pages into its books
// in the next call that allocates or frees memory on that GPU, in any process
// (_pmaCheckScrubbedPages in its phys_mem_allocator.c). On an H100 that takes 0.35 ms for each GiB,
// and would be a part of the next request for fresh memory. So a while after memory was freed a
// little is allocated and freed again, repeatedly until all must be cleared.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace gpumemd {

// When to allocate. Not thread-safe.
class TidySchedule {
 public:
  // After the last free, and between two allocations. It bounds how much bookkeeping one of them
  // does, since other calls of the driver wait for that.
  static constexpr absl::Duration kPause = absl::Milliseconds(10);
  // The driver clears at least so much a second.
  static constexpr uint64_t kClearedPerSecond = uint64_t{64} << 30;
  // Less is not worth a call.
  static constexpr uint64_t kLeastBytes = uint64_t{256} << 20;

  // Notes that memory was freed. Postpones the next allocation: while frees follow each other,
  // each does the bookkeeping of those before.
  void Freed(absl::Time now, uint64_t bytes);
  // Notes an allocation at next().
  void Allocated(absl::Time now);
  // Returns when to allocate; absl::InfiniteFuture(): not before more is freed.
  absl::Time next() const { return next_; }

 private:
  uint64_t bytes_ = 0;  // freed since the last tidying
  absl::Time cleared_ = absl::InfinitePast();
  absl::Time next_ = absl::InfiniteFuture();
};

// Thread-safe. Its thread sleeps while nothing was freed.
class DriverTidy {
 public:
  // `allocate` allocates and frees a little, and is called on the thread.
  explicit DriverTidy(std::function<void()> allocate);
  // Blocks until a call of `allocate` that has begun returns.
  ~DriverTidy();
  DriverTidy(const DriverTidy&) = delete;
  DriverTidy& operator=(const DriverTidy&) = delete;

  void Freed(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::function<void()> allocate_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  TidySchedule schedule_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // not joinable if the system refused it: then nothing is tidied
};

}  // namespace gpumemd
