// SPDX-License-Identifier: Apache-2.0
// Allocates and maps the pages of the host tier's file ahead of their registration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/device/context/tier_file.h"

namespace gpumemd {

// Works on windows of a file, in their order, in several threads, while another thread registers
// those that are done. The driver registers 10 GB/s of pages that its process has not mapped yet,
// and 22 GB/s of pages that it has; with four threads ahead of it, 34 GB/s (one H200).
class Populating {
 public:
  // `file` must outlive this.
  Populating(const TierFile* file, std::vector<uint64_t> windows);
  // Ends after the windows that are being worked on.
  ~Populating();
  Populating(const Populating&) = delete;
  Populating& operator=(const Populating&) = delete;

  // Blocks until the pages of windows[i] are there.
  //   RESOURCE_EXHAUSTED  the machine has no memory left
  absl::Status Await(size_t i);

 private:
  enum class State { kNew, kBegun, kDone, kFailed };

  void Work();
  // Takes the first new window, works on it, and returns true. False: there is none.
  bool WorkOnNext();

  const TierFile& file_;
  const std::vector<uint64_t> windows_;
  absl::Mutex mutex_;
  std::vector<State> states_ ABSL_GUARDED_BY(mutex_);  // of windows_
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;            // all before it have begun
  int error_ ABSL_GUARDED_BY(mutex_) = 0;              // the first one
  std::vector<std::thread> helpers_;
};

}  // namespace gpumemd
