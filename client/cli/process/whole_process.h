// SPDX-License-Identifier: Apache-2.0
// gpumemctl suspend --process and resume --process: the sessions of a process suspend their memory,
// and the driver checkpoints the rest (common/cuda/checkpoint.h).
//
// The order is what makes it safe. The process is locked before the last look at the daemon's
// lists: no call of CUDA can then map memory that the look would miss.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/effects/effects.h"
#include "client/cli/process/examine.h"
#include "client/cli/process/record.h"
#include "client/cli/process/target.h"
#include "common/cuda/checkpoint.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::cli {

// How much more than the process used has to be free on each device before a restore. After one, a
// device had up to 64 MiB less free than before the checkpoint.
inline constexpr uint64_t kRestoreMargin = uint64_t{256} << 20;
// Host memory that a checkpoint takes beside the contents, and some to spare.
inline constexpr uint64_t kCheckpointHostBytes = uint64_t{1} << 30;

// The daemon, as the steps need it. Each also returns the statuses of the connection.
class ProcessBroker {
 public:
  virtual ~ProcessBroker() = default;
  virtual absl::StatusOr<LedgerLists> Lists() = 0;
  virtual absl::StatusOr<v1::GetStatusResponse> Status() = 0;
  virtual absl::StatusOr<v1::SuspendSessionResponse> Suspend(uint64_t session,
                                                             absl::Duration timeout) = 0;
  virtual absl::StatusOr<v1::ResumeSessionResponse> Resume(uint64_t session,
                                                           absl::Duration timeout) = 0;
};

// The machine, and the process on it.
class ProcessMachine {
 public:
  virtual ~ProcessMachine() = default;
  // As Target::Look.
  virtual absl::StatusOr<TargetFacts> Look() = 0;
  virtual Caller Self() = 0;
  // True if the pid is that of a gpumemd here.
  virtual bool IsDaemon(pid_t pid) = 0;
  // Returns the process's memory on each of these devices that it uses, by the driver's count, its
  // contexts included. FAILED_PRECONDITION: the driver does not report it.
  virtual absl::StatusOr<DeviceBytesMap> Memory(const std::vector<std::string>& devices) = 0;
  virtual uint64_t AvailableHostBytes() = 0;  // 0: unknown
  virtual absl::Time Now() = 0;
  virtual void Sleep(absl::Duration time) = 0;
};

struct SuspendedProcess {
  v1::SuspendSessionResponse leases;  // of all sessions
  std::vector<uint64_t> sessions;     // that were asked
  DeviceBytesMap moved;               // by the driver to the process's host memory
};

struct ResumedProcess {
  v1::ResumeSessionResponse leases;
  std::vector<uint64_t> sessions;
  DeviceBytesMap moved;  // back to the devices; empty: there was nothing to restore
};

// Acts on one process. Each call returns the statuses of its parts. INTERNAL: the driver.
class WholeProcess {
 public:
  // All must outlive this.
  WholeProcess(ProcessBroker* broker, ProcessMachine* machine, Checkpointer* driver,
               const ProcessRecords* records)
      : broker_(*broker), machine_(*machine), driver_(*driver), records_(*records) {}

  // Returns what Suspend would do, or each thing that forbids it, as notices. Changes nothing.
  absl::StatusOr<Effects> SuspendEffects(bool exact);

  // Suspends the process. `timeout` is for its sessions and its GPU work, not for the copy. After
  // an error the process is as before, or the message names the rest.
  //   FAILED_PRECONDITION  its state forbids it; the message has each reason
  //   RESOURCE_EXHAUSTED   the machine has too little host memory
  //   DATA_LOSS            the driver has lost the process
  absl::StatusOr<SuspendedProcess> Suspend(absl::Duration timeout);

  // `bytes` replaces a record that is missing: what each device needs.
  absl::StatusOr<Effects> ResumeEffects(std::optional<uint64_t> bytes, bool exact);

  // Resumes the process: of one that is only locked or not suspended as a whole, the rest. May
  // be repeated. Waits until `timeout` for room on the devices, and for its sessions.
  //   RESOURCE_EXHAUSTED   a device has no room for it: nothing was changed
  //   FAILED_PRECONDITION  there is no record, and no `bytes`
  //   DATA_LOSS            the driver has lost the process
  absl::StatusOr<ResumedProcess> Resume(absl::Duration timeout, std::optional<uint64_t> bytes);

 private:
  struct Plan {
    TargetFacts target;
    Examination found;
    DeviceBytesMap memory;
  };
  struct Return {
    TargetFacts target;
    CheckpointState state = CheckpointState::kRunning;
    DeviceBytesMap need;             // of kCheckpointed
    std::vector<uint64_t> sessions;  // to resume
  };

  absl::StatusOr<TargetFacts> LookAtTarget(const v1::GetStatusResponse& daemon);
  absl::StatusOr<Plan> PlanSuspend();
  absl::StatusOr<Return> PlanResume(std::optional<uint64_t> bytes);
  // Locks the process, makes sure that it can be restored, and checkpoints it. After an error it
  // runs, or the message says that it does not.
  absl::StatusOr<DeviceBytesMap> Checkpoint(const Plan& plan,
                                            const std::vector<uint64_t>& suspended,
                                            absl::Time deadline);
  absl::StatusOr<DeviceBytesMap> PrepareLocked(const Plan& plan,
                                               const std::vector<uint64_t>& suspended);
  // Both return `error`, with what they could not undo.
  absl::Status Unlocked(pid_t pid, const absl::Status& error);
  absl::Status Undone(const std::vector<uint64_t>& sessions, absl::Duration timeout,
                      const absl::Status& error);
  absl::Status AwaitRoom(const DeviceBytesMap& need, absl::Time deadline);
  absl::Status Restore(const Return& plan, absl::Time deadline);

  ProcessBroker& broker_;
  ProcessMachine& machine_;
  Checkpointer& driver_;
  const ProcessRecords& records_;
};

}  // namespace gpumem::cli
