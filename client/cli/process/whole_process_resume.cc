// SPDX-License-Identifier: Apache-2.0
// Resuming a process that was suspended as a whole.
//
// The room is checked, not reserved: a lease cannot reserve it. Its memory would have to be given
// back to the driver before the restore, and the daemon's queue would hand it out at that moment.
// So the caller is told who may take it meanwhile (docs/how-to/suspend.md).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/process/ignored_signals.h"
#include "client/cli/process/whole_process.h"
#include "client/cli/text/format.h"

namespace gpumem::cli {
namespace {

// How often a wait looks for room.
constexpr absl::Duration kRoomPoll = absl::Milliseconds(200);
constexpr absl::Duration kLeastTime = absl::Milliseconds(1);

absl::Status LostIn(pid_t pid, const absl::Status& why) {
  return absl::DataLossError(absl::StrCat(why.message(), "; the driver has lost process ", pid,
                                          ": its CUDA state is gone. End it"));
}

// Returns which device has too little free memory; empty if none has.
std::string WhyNoRoom(const DeviceBytesMap& need, const v1::GetStatusResponse& daemon) {
  for (const auto& [uuid, bytes] : need) {
    const v1::Device* found = nullptr;
    for (const v1::Device& device : daemon.devices()) {
      if (device.device_uuid() == uuid) found = &device;
    }
    if (found == nullptr) return absl::StrCat("the daemon does not know the device ", uuid);
    const uint64_t free = found->driver_free_bytes();
    if (free >= kRestoreMargin && free - kRestoreMargin >= bytes) continue;
    return absl::StrCat("device ", uuid, " has ", Size(found->driver_free_bytes(), false),
                        " free, and a restore needs ", Size(bytes, false), " and ",
                        Size(kRestoreMargin, false), " to spare");
  }
  return "";
}

}  // namespace

absl::StatusOr<WholeProcess::Return> WholeProcess::PlanResume(std::optional<uint64_t> bytes) {
  absl::StatusOr<LedgerLists> lists = broker_.Lists();
  if (!lists.ok()) return lists.status();
  absl::StatusOr<TargetFacts> target = LookAtTarget(lists->status);
  if (!target.ok()) return target.status();
  absl::StatusOr<CheckpointState> state = driver_.State(target->pid);
  if (!state.ok()) return state.status();
  const pid_t pid = target->pid;
  Return plan{.target = *target, .state = *state};
  const std::vector<uint64_t> suspended = SuspendedSessions(*target, *lists);
  const absl::StatusOr<ProcessRecord> record = records_.Read(pid, target->start_ticks);
  for (const uint64_t session : suspended) {
    const bool asked = !record.ok() || std::find(record->sessions.begin(), record->sessions.end(),
                                                 session) != record->sessions.end();
    if (asked) plan.sessions.push_back(session);
  }
  switch (*state) {
    case CheckpointState::kRunning:
    case CheckpointState::kLocked:
      return plan;
    case CheckpointState::kFailed:
      return LostIn(pid, absl::DataLossError("an earlier checkpoint or restore has failed"));
    case CheckpointState::kCheckpointed:
      break;
  }
  if (record.ok()) plan.need = record->need;
  if (bytes.has_value()) {
    for (const v1::Device& device : lists->status.devices()) {
      if (IsHostMemory(device.device_uuid())) continue;
      uint64_t& need = plan.need[device.device_uuid()];
      need = std::max(need, *bytes);
    }
  }
  if (plan.need.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("how much memory a restore needs is unknown (", record.status().message(),
                     "): have the user resume it who suspended it, or give --bytes, what the "
                     "process used on a device. A restore without room loses the process"));
  }
  return plan;
}

absl::StatusOr<Effects> WholeProcess::ResumeEffects(std::optional<uint64_t> bytes, bool exact) {
  absl::StatusOr<Return> plan = PlanResume(bytes);
  if (!plan.ok()) return plan.status();
  const std::string name = absl::StrCat("process ", plan->target.pid);
  Effects effects;
  for (const auto& [device, amount] : plan->need) {
    effects.lines.push_back(
        absl::StrCat(name, " moves up to ", Size(amount, exact), " back to ", device));
  }
  if (plan->state != CheckpointState::kRunning) {
    effects.lines.push_back(absl::StrCat(name, " goes on with its CUDA calls"));
  }
  for (const uint64_t session : plan->sessions) {
    effects.lines.push_back(
        absl::StrCat("session ", session, " is asked to bring its suspended memory back"));
  }
  if (plan->need.empty()) return effects;
  absl::StatusOr<v1::GetStatusResponse> daemon = broker_.Status();
  if (!daemon.ok()) return daemon.status();
  if (const std::string why = WhyNoRoom(plan->need, *daemon); !why.empty()) {
    effects.notices.push_back(absl::StrCat("forbidden: ", why, "."));
  }
  effects.notices.emplace_back(
      daemon->draining()
          ? "The daemon drains: it hands out no new memory, but other programs can resume theirs. "
            "If they take the room during the restore, the process is lost."
          : "If others take the memory during the restore, the process is lost; after gpumemctl "
            "drain only suspended memory can still come back.");
  return effects;
}

absl::Status WholeProcess::AwaitRoom(const DeviceBytesMap& need, absl::Time deadline) {
  while (true) {
    absl::StatusOr<v1::GetStatusResponse> daemon = broker_.Status();
    if (!daemon.ok()) return daemon.status();
    const std::string why = WhyNoRoom(need, *daemon);
    if (why.empty()) return absl::OkStatus();
    if (machine_.Now() >= deadline) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the process stays suspended: ", why,
                       ". Free memory there (gpumemctl trim, ps), or wait longer (--timeout)"));
    }
    machine_.Sleep(std::min(kRoomPoll, deadline - machine_.Now()));
  }
}

absl::Status WholeProcess::Restore(const Return& plan, absl::Time deadline) {
  const pid_t pid = plan.target.pid;
  if (plan.state == CheckpointState::kRunning) return absl::OkStatus();
  if (plan.state == CheckpointState::kCheckpointed) {
    if (absl::Status room = AwaitRoom(plan.need, deadline); !room.ok()) return room;
    // The wait may have been long.
    absl::StatusOr<TargetFacts> target = machine_.Look();
    if (!target.ok()) return target.status();
    if (target->state == 'T' || target->state == 't') {
      return absl::FailedPreconditionError(
          absl::StrCat("process ", pid, " is stopped: continue it (SIGCONT)"));
    }
  }
  const IgnoredSignals whole;  // so that no signal leaves the process locked
  if (plan.state == CheckpointState::kCheckpointed) {
    if (absl::Status restored = driver_.Restore(pid); !restored.ok()) return LostIn(pid, restored);
  }
  absl::Status unlocked = driver_.Unlock(pid);
  if (unlocked.ok()) return unlocked;
  return {unlocked.code(), absl::StrCat(unlocked.message(),
                                        "; its CUDA calls block still: repeat "
                                        "gpumemctl resume --process ",
                                        pid)};
}

absl::StatusOr<ResumedProcess> WholeProcess::Resume(absl::Duration timeout,
                                                    std::optional<uint64_t> bytes) {
  const absl::Time deadline = machine_.Now() + timeout;
  absl::StatusOr<Return> plan = PlanResume(bytes);
  if (!plan.ok()) return plan.status();
  if (absl::Status restored = Restore(*plan, deadline); !restored.ok()) return restored;
  ResumedProcess result{.sessions = plan->sessions, .moved = plan->need};
  std::vector<std::string> left;
  absl::StatusCode code = absl::StatusCode::kOk;
  for (const uint64_t session : plan->sessions) {
    const auto answer = broker_.Resume(session, std::max(deadline - machine_.Now(), kLeastTime));
    if (!answer.ok()) {
      if (left.empty()) code = answer.status().code();
      left.push_back(absl::StrCat("session ", session, ": ", answer.status().message()));
      continue;
    }
    result.leases.set_resumed_leases(result.leases.resumed_leases() + answer->resumed_leases());
    result.leases.set_resumed_bytes(result.leases.resumed_bytes() + answer->resumed_bytes());
  }
  if (!left.empty()) {
    return absl::Status(
        code, absl::StrCat("process ", plan->target.pid, " runs, with memory still suspended: ",
                           absl::StrJoin(left, "; "), "; repeat the command"));
  }
  records_.Remove(plan->target.pid, plan->target.start_ticks);
  return result;
}

}  // namespace gpumem::cli
