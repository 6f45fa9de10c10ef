// SPDX-License-Identifier: Apache-2.0
// The driver's checkpoints of processes (cuCheckpointProcess*): all CUDA state of a process, its
// contexts included, moves to host memory of that process and back, at the same addresses.
//
// A process is locked, checkpointed, restored and unlocked, in this order. Each step may be made by
// another caller. The state is of the process, not of the caller, and outlives the caller.
//
// The driver does not check all that a restore needs: some states are checkpointed and then cannot
// be restored, and the process is lost (docs/how-to/suspend.md). Callers have to refuse these.
#pragma once

#include <sys/types.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gpumem {

enum class CheckpointState {
  kRunning,
  kLocked,        // its CUDA calls block
  kCheckpointed,  // it uses no device; its CUDA calls block
  kFailed,        // lost: the driver can neither restore it nor go on with it
};

// One call changes one process, in the PID namespace of the caller. The caller is root or has the
// uid of the process. Makes no CUDA context. INTERNAL: any error of the driver, by its name.
class Checkpointer {
 public:
  // Returns the driver's calls.
  //   UNIMPLEMENTED  no CUDA driver, or one before CUDA 12.8; or built without these calls
  static absl::StatusOr<std::unique_ptr<Checkpointer>> ForCuda();

  virtual ~Checkpointer() = default;
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  //   DEADLINE_EXCEEDED  the process does not answer, as when it is stopped
  virtual absl::StatusOr<CheckpointState> State(pid_t pid) = 0;

  // Blocks the process's CUDA calls once its queued GPU work is done.
  //   DEADLINE_EXCEEDED  that takes longer than `timeout`: nothing is changed. Or the process does
  //                      not answer: it may be locked later, when it goes on
  //   FAILED_PRECONDITION  it is locked already, or checkpointed
  virtual absl::Status Lock(pid_t pid, absl::Duration timeout) = 0;

  // Moves the state of a locked process to its host memory. Blocks for as long as the copy takes.
  //   UNIMPLEMENTED  the driver refuses the state (managed memory); the process stays locked
  virtual absl::Status Checkpoint(pid_t pid) = 0;

  // Moves the state back; the process is locked then. Any error loses the process for good: the
  // driver accepts no second try.
  //   RESOURCE_EXHAUSTED  a device has no room
  virtual absl::Status Restore(pid_t pid) = 0;

  // Lets a locked process go on.
  //   DEADLINE_EXCEEDED  the process does not answer
  virtual absl::Status Unlock(pid_t pid) = 0;

 protected:
  Checkpointer() = default;
};

}  // namespace gpumem
