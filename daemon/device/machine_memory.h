// SPDX-License-Identifier: Apache-2.0
// The machine's memory that this process may take.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace gpumemd {

// Returns the bytes that this process may take: the least of the machine's available memory and the
// remainder of each of its control groups (cgroups v2 and v1). A reserve of a sixteenth of the
// whole, for existing processes, is subtracted. Memory that a group could reclaim at once (old
// pages of files) counts as remaining.
//   RESOURCE_EXHAUSTED  no descriptors left
//   INTERNAL            the system does not report it
absl::StatusOr<uint64_t> BytesToTake(const std::string& root = "");

// Returns the bytes of free huge pages of 2 MiB. Others may have reserved them.
uint64_t FreeHugePageBytes(const std::string& root = "");

// True if huge pages of 2 MiB are free.
bool HasFreeHugePages(const std::string& root = "");

// Admits takers while there is memory for all of them. Thread-safe.
class MemoryGate : public std::enable_shared_from_this<MemoryGate> {
 public:
  // `root` is for tests: a folder in place of "/".
  explicit MemoryGate(std::string root = "") : root_(std::move(root)) {}

  // Returns the gate of this process: the takers of all devices count.
  static std::shared_ptr<MemoryGate> Shared() {
    static const auto gate = std::make_shared<MemoryGate>();
    return gate;
  }

  // Admits a taker of `bytes`. The caller keeps the returned object until the system counts the
  // bytes, since they count here until then.
  //   RESOURCE_EXHAUSTED  fewer are available
  //   INTERNAL            the system does not report it
  absl::StatusOr<std::shared_ptr<void>> Enter(uint64_t bytes);

 private:
  const std::string root_;
  absl::Mutex mutex_;
  uint64_t entered_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpumemd
