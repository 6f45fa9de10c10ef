// SPDX-License-Identifier: Apache-2.0
// Records the spans (span.h) of all threads of this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/trace/span.h"

namespace gpumem::trace {

// Each thread that makes spans has a ring of kSpansPerThread. The memory for all is reserved by the
// first recording, touched as threads use it, and given back to the kernel by the end of each one.
inline constexpr size_t kMostThreads = 640;
inline constexpr size_t kSpansPerThread = 2048;
inline constexpr size_t kMostRecordingBytes = kMostThreads * kSpansPerThread * sizeof(Event);

// One at a time in a process. Its methods are for one thread at a time, but Stop().
class Recording {
 public:
  // Starts to record.
  //   FAILED_PRECONDITION  another one runs
  //   RESOURCE_EXHAUSTED   no memory
  static absl::StatusOr<std::unique_ptr<Recording>> Start();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Ends recording; what has been recorded can still be taken. Thread-safe.
  void Stop() { on.store(false, std::memory_order_relaxed); }

  // Appends what was recorded since the last call to `events`: of each thread in the order in which
  // its spans ended. Call it often enough that no ring fills up.
  void Take(std::vector<Event>* events);

  // Returns the number of spans lost so far: a ring was full, or too many threads made spans.
  uint64_t dropped() const { return dropped_; }
  // Of the clock of Event.
  uint64_t started_ns() const { return started_ns_; }

 private:
  Recording() = default;

  uint64_t started_ns_ = 0;
  uint64_t dropped_ = 0;
};

// Has this process, a child made by fork(), record nothing: it has no thread that takes spans.
void StopAfterFork();

}  // namespace gpumem::trace
