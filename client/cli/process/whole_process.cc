// SPDX-License-Identifier: Apache-2.0
#include "client/cli/process/whole_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/process/ignored_signals.h"
#include "client/cli/text/format.h"

namespace gpumem::cli {
namespace {

constexpr absl::Duration kShortest = absl::Milliseconds(1);

std::string Name(pid_t pid) { return absl::StrCat("process ", pid); }

absl::Status Extended(const absl::Status& status, absl::string_view more) {
  return {status.code(), absl::StrCat(status.message(), "; ", more)};
}

absl::Status Forbidden(pid_t pid, const std::vector<std::string>& reasons) {
  return absl::FailedPreconditionError(
      absl::StrCat(Name(pid), " cannot be suspended as a whole: ", absl::StrJoin(reasons, "; ")));
}

absl::Status Lost(pid_t pid, absl::string_view why) {
  return absl::DataLossError(
      absl::StrCat(why, "; the driver has lost ", Name(pid), ": its CUDA state is gone. End it"));
}

// Returns why a process in this state cannot be suspended; empty if it can.
std::string WhyNotRunning(CheckpointState state) {
  switch (state) {
    case CheckpointState::kRunning:
      return "";
    case CheckpointState::kLocked:
      return "another command has locked it; if none runs, gpumemctl resume --process unlocks it";
    case CheckpointState::kCheckpointed:
      return "it is suspended as a whole already";
    case CheckpointState::kFailed:
      return "the driver has lost it: end it";
  }
  return "its state is unknown";
}

std::vector<std::string> Gpus(const v1::GetStatusResponse& daemon) {
  std::vector<std::string> uuids;
  for (const v1::Device& device : daemon.devices()) {
    if (!IsHostMemory(device.device_uuid())) uuids.push_back(device.device_uuid());
  }
  return uuids;
}

uint64_t SumOf(const DeviceBytesMap& memory) {
  uint64_t sum = 0;
  for (const auto& [device, bytes] : memory) sum += bytes;
  return sum;
}

// Returns the status of a process of which the driver counts this memory.
absl::Status CheckContext(const DeviceBytesMap& memory) {
  if (SumOf(memory) > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "it has no CUDA context on the daemon's devices, so there is nothing to checkpoint");
}

}  // namespace

absl::StatusOr<TargetFacts> WholeProcess::LookAtTarget(const v1::GetStatusResponse& daemon) {
  absl::StatusOr<TargetFacts> target = machine_.Look();
  if (!target.ok()) return target;
  absl::Status may = CheckMayAct(
      *target, daemon, machine_.IsDaemon(static_cast<pid_t>(daemon.pid())), machine_.Self());
  if (!may.ok()) return may;
  return target;
}

absl::StatusOr<WholeProcess::Plan> WholeProcess::PlanSuspend() {
  absl::StatusOr<LedgerLists> lists = broker_.Lists();
  if (!lists.ok()) return lists.status();
  absl::StatusOr<TargetFacts> target = LookAtTarget(lists->status);
  if (!target.ok()) return target.status();
  Plan plan{.target = *target, .found = ExamineBefore(*target, *lists)};
  absl::StatusOr<CheckpointState> state = driver_.State(target->pid);
  if (!state.ok()) return state.status();
  if (const std::string why = WhyNotRunning(*state); !why.empty()) {
    plan.found.forbids.push_back(why);
    return plan;
  }
  absl::StatusOr<DeviceBytesMap> memory = machine_.Memory(Gpus(lists->status));
  if (!memory.ok()) return memory.status();
  if (absl::Status context = CheckContext(*memory); !context.ok()) {
    plan.found.forbids.emplace_back(context.message());
  }
  plan.memory = *std::move(memory);
  return plan;
}

absl::StatusOr<Effects> WholeProcess::SuspendEffects(bool exact) {
  absl::StatusOr<Plan> plan = PlanSuspend();
  if (!plan.ok()) return plan.status();
  Effects effects;
  for (const std::string& why : plan->found.forbids) {
    effects.notices.push_back(absl::StrCat("forbidden: ", why, "."));
  }
  if (!effects.notices.empty()) return effects;
  for (const uint64_t session : plan->found.mapping) {
    effects.lines.push_back(absl::StrCat("session ", session, " is asked to suspend its leases"));
  }
  for (const auto& [device, bytes] : plan->memory) {
    effects.lines.push_back(absl::StrCat(Name(plan->target.pid), " moves up to ",
                                         Size(bytes, exact), " of its own on ", device,
                                         " to its host memory, its context included"));
  }
  effects.lines.push_back(
      absl::StrCat("its CUDA calls block until gpumemctl resume --process ", plan->target.pid));
  effects.takes = true;
  effects.notices.emplace_back(
      "The daemon and the driver do not see the process's own imports of CUDA IPC and pools, nor "
      "its CUDA memory on the host's NUMA nodes: with these the process is lost.");
  return effects;
}

absl::StatusOr<SuspendedProcess> WholeProcess::Suspend(absl::Duration timeout) {
  const absl::Time deadline = machine_.Now() + timeout;
  absl::StatusOr<Plan> plan = PlanSuspend();
  if (!plan.ok()) return plan.status();
  if (!plan->found.forbids.empty()) return Forbidden(plan->target.pid, plan->found.forbids);
  SuspendedProcess result{.sessions = plan->found.mapping};
  std::vector<uint64_t> asked;
  for (const uint64_t session : plan->found.mapping) {
    asked.push_back(session);
    const auto answer = broker_.Suspend(session, std::max(deadline - machine_.Now(), kShortest));
    if (absl::IsDeadlineExceeded(answer.status())) {
      return Undone(
          asked, timeout,
          Extended(answer.status(),
                   absl::StrCat("session ", session, " may still suspend it later: ",
                                "gpumemctl resume --process ", plan->target.pid, " resumes it")));
    }
    if (!answer.ok()) return Undone(asked, timeout, answer.status());
    result.leases.set_suspended_leases(result.leases.suspended_leases() +
                                       answer->suspended_leases());
    result.leases.set_moved_bytes(result.leases.moved_bytes() + answer->moved_bytes());
    result.leases.set_resident_bytes(result.leases.resident_bytes() + answer->resident_bytes());
    result.leases.set_dropped_bytes(result.leases.dropped_bytes() + answer->dropped_bytes());
  }
  absl::StatusOr<DeviceBytesMap> moved = Checkpoint(*plan, asked, deadline);
  if (!moved.ok()) return Undone(asked, timeout, moved.status());
  result.moved = *std::move(moved);
  return result;
}

absl::StatusOr<DeviceBytesMap> WholeProcess::Checkpoint(const Plan& plan,
                                                        const std::vector<uint64_t>& suspended,
                                                        absl::Time deadline) {
  const pid_t pid = plan.target.pid;
  // The sessions may have taken long, and the pid may be another process's by now.
  if (const auto target = machine_.Look(); !target.ok()) return target.status();
  const IgnoredSignals whole;  // so that no signal leaves the process locked
  absl::Status locked = driver_.Lock(pid, std::max(deadline - machine_.Now(), kShortest));
  // The lock is another command's, which unlocks it.
  if (absl::IsFailedPrecondition(locked)) return locked;
  if (!locked.ok()) {
    const absl::StatusOr<CheckpointState> state = driver_.State(pid);
    if (state.ok() && *state == CheckpointState::kRunning) return locked;
    return Unlocked(pid, locked);
  }
  absl::StatusOr<DeviceBytesMap> need = PrepareLocked(plan, suspended);
  absl::Status done = need.ok() ? driver_.Checkpoint(pid) : need.status();
  if (done.ok()) return need;
  const absl::StatusOr<CheckpointState> state = driver_.State(pid);
  if (state.ok() && *state == CheckpointState::kFailed) return Lost(pid, done.message());
  if (state.ok() && *state == CheckpointState::kCheckpointed) {
    return Extended(done, absl::StrCat("it is checkpointed all the same: gpumemctl resume "
                                       "--process ",
                                       pid, " restores it"));
  }
  records_.Remove(pid, plan.target.start_ticks);
  return Unlocked(pid, done);
}

absl::StatusOr<DeviceBytesMap> WholeProcess::PrepareLocked(const Plan& plan,
                                                           const std::vector<uint64_t>& suspended) {
  absl::StatusOr<LedgerLists> lists = broker_.Lists();
  if (!lists.ok()) return lists.status();
  absl::StatusOr<TargetFacts> target = LookAtTarget(lists->status);
  if (!target.ok()) return target.status();
  if (target->start_ticks != plan.target.start_ticks) {
    return absl::NotFoundError(absl::StrCat("no ", Name(plan.target.pid), " any more"));
  }
  const std::vector<std::string> forbids = ExamineLocked(*target, *lists, plan.found.sessions);
  if (!forbids.empty()) return Forbidden(target->pid, forbids);
  absl::StatusOr<DeviceBytesMap> need = machine_.Memory(Gpus(lists->status));
  if (!need.ok()) return need;
  if (absl::Status context = CheckContext(*need); !context.ok()) return context;
  const uint64_t room = machine_.AvailableHostBytes();
  const uint64_t wanted = SumOf(*need) + kCheckpointHostBytes;
  if (room < wanted) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a checkpoint of ", Name(target->pid), " takes ", Size(wanted, /*exact=*/false),
        " of host memory, and the machine has ", Size(room, /*exact=*/false), " available"));
  }
  std::vector<uint64_t> owed = suspended;
  // Those that an earlier resume could not bring back.
  if (const auto before = records_.Read(target->pid, target->start_ticks); before.ok()) {
    for (const uint64_t session : before->sessions) {
      if (std::find(owed.begin(), owed.end(), session) == owed.end()) owed.push_back(session);
    }
  }
  absl::Status written = records_.Write(
      {.pid = target->pid, .start_ticks = target->start_ticks, .need = *need, .sessions = owed});
  if (!written.ok()) return written;
  return need;
}

absl::Status WholeProcess::Unlocked(pid_t pid, const absl::Status& error) {
  // The pid of an ended process may be another's by now.
  if (absl::IsNotFound(machine_.Look().status())) return error;
  const absl::Status unlocked = driver_.Unlock(pid);
  if (unlocked.ok()) return error;
  return Extended(error, absl::StrCat("it may be locked (", unlocked.message(),
                                      "): gpumemctl resume --process ", pid, " unlocks it"));
}

absl::Status WholeProcess::Undone(const std::vector<uint64_t>& sessions, absl::Duration timeout,
                                  const absl::Status& error) {
  const absl::StatusOr<TargetFacts> target = machine_.Look();
  if (!target.ok()) return error;
  const absl::StatusOr<CheckpointState> state = driver_.State(target->pid);
  if (state.ok() && *state != CheckpointState::kRunning) return error;  // it says what to do
  std::vector<std::string> left;
  const absl::Time deadline = machine_.Now() + timeout;
  for (const uint64_t session : sessions) {
    const auto resumed = broker_.Resume(session, std::max(deadline - machine_.Now(), kShortest));
    // The last session asked may have suspended nothing.
    if (resumed.ok() || absl::IsFailedPrecondition(resumed.status())) continue;
    left.push_back(absl::StrCat(session, " (", resumed.status().message(), ")"));
  }
  if (left.empty()) return error;
  return Extended(error, absl::StrCat("memory of these sessions is still suspended: ",
                                      absl::StrJoin(left, ", "), "; gpumemctl resume --process ",
                                      target->pid, " resumes it"));
}

}  // namespace gpumem::cli
