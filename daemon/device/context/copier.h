// SPDX-License-Identifier: Apache-2.0
// One device's process that copies between its segments and the host tier.
//
// It is separate from the context process of kinds mempool and ipc: a copy of seconds holds up no
// Create, and an error in its context loses no segment.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/device/context/process.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Thread-safe. The process starts with the first copy, or before it by Prepare(). It ends with
// this, by End(), or once it has been idle for `idle` to twice as long. Its end also returns the
// GPU memory of its context, and lets go of the tier's registered memory.
class TierCopier {
 public:
  TierCopier(ContextSpec spec, absl::Duration idle) : spec_(std::move(spec)), idle_(idle) {}
  ~TierCopier();

  // As Device::PrepareCopies.
  void Prepare();
  // As Device::Copy. Calls run one at a time.
  absl::Status Copy(absl::Span<const CopyItem> items);
  // Returns the process; 0: none now.
  pid_t pid() const { return pid_; }
  // Ends the process at once. A copy in progress fails with UNAVAILABLE.
  void End();

 private:
  // Returns the process; starts one if there is none.
  //   UNAVAILABLE  End() was called since `ends` was read
  absl::StatusOr<std::shared_ptr<ContextProcess>> Process(uint64_t ends)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(copying_) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CopyIn(ContextProcess& process, absl::Span<const CopyBatch> batches);
  // Starts background_ if there is none.
  absl::Status EnsureBackground() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts the process when it is wanted, and ends it when it is idle. Runs in background_.
  void StartAndEnd();

  const ContextSpec spec_;
  const absl::Duration idle_;
  std::atomic<pid_t> pid_{0};

  absl::Mutex copying_ ABSL_ACQUIRED_BEFORE(mutex_);  // held during a start and a copy

  absl::Mutex mutex_;  // held for moments
  std::thread background_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ContextProcess> process_ ABSL_GUARDED_BY(mutex_);  // null: none now
  int copies_ ABSL_GUARDED_BY(mutex_) = 0;       // in progress or waiting for their turn
  uint64_t ends_ ABSL_GUARDED_BY(mutex_) = 0;    // calls of End()
  bool used_ ABSL_GUARDED_BY(mutex_) = false;    // since background_ looked
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;  // by Prepare(), and not started yet
  bool destroying_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gpumemd
