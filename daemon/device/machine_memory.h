// What memory the machine lets this process have.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace gpumemd {

// The least of what the machine has available and of what each control group that this process
// is in has left (cgroups v2 and v1), less a reserve of a sixteenth of the whole, for the
// processes that are there. What a group could give back at once (old pages of files) counts as
// left.
//   INTERNAL  the system does not say
absl::StatusOr<uint64_t> BytesToTake(const std::string& root = "");

// Whether huge pages of 2 MiB are free.
bool HasFreeHugePages(const std::string& root = "");

// Admits takers as long as there is memory for all of them. Thread-safe.
class MemoryGate : public std::enable_shared_from_this<MemoryGate> {
 public:
  // `root` is for tests: "/" is looked for below it.
  explicit MemoryGate(std::string root = "") : root_(std::move(root)) {}

  // Before `bytes` are taken; the answer is to be kept until the system counts them, since they
  // count here until then.
  //   RESOURCE_EXHAUSTED  there are not as many
  //   INTERNAL            the system does not say
  absl::StatusOr<std::shared_ptr<void>> Enter(uint64_t bytes);

 private:
  const std::string root_;
  absl::Mutex mutex_;
  uint64_t entered_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpumemd
