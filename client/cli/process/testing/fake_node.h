// SPDX-License-Identifier: Apache-2.0
// A daemon, a driver and a machine with one process, for tests of WholeProcess. The driver behaves
// as docs/how-to/suspend.md says: it checkpoints states that it then cannot restore.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/process/whole_process.h"
#include "common/bytes.h"

namespace gpumem::cli {

inline constexpr pid_t kPid = 4711;
inline constexpr pid_t kDaemonPid = 7;
inline constexpr uint64_t kSession = 12;
inline constexpr char kGpu[] = "GPU-1";

class FakeNode final : public ProcessBroker, public ProcessMachine, public Checkpointer {
 public:
  FakeNode() {
    v1::GetStatusResponse& status = lists.status;
    status.set_pid(kDaemonPid);
    status.set_backend(v1::BACKEND_CUDA);
    v1::Device& gpu = *status.add_devices();
    gpu.set_device_uuid(kGpu);
    gpu.set_driver_free_bytes(8 * kGiB);
    status.add_devices()->set_device_uuid("TIER-1");
    AddSession(kSession);
    target = {.pid = kPid,
              .parent = 1,
              .start_ticks = 99,
              .age = absl::Hours(1),
              .uids = {1000, 1000, 1000, 1000},
              .same_namespace = true};
    memory = {{kGpu, 526 * kMiB}};
  }

  v1::SessionInfo& AddSession(uint64_t id) {
    v1::SessionInfo& session = *lists.sessions.add_sessions();
    session.set_session_id(id);
    session.set_pid(kPid);
    session.set_uid(1000);
    session.set_tenant("team");
    session.set_state(v1::SessionInfo::STATE_LIVE);
    return session;
  }
  // Adds a segment of the process's first session, with a lease.
  v1::SegmentInfo& AddSegment(uint64_t id, v1::Kind kind, uint64_t session = kSession) {
    v1::LeaseInfo& lease = *lists.holders.add_leases();
    lease.set_lease_id(100 + id);
    lease.set_segment_id(id);
    lease.set_session_id(session);
    lease.set_tenant("team");
    v1::SegmentInfo& segment = *lists.segments.add_segments();
    segment.set_segment_id(id);
    segment.set_kind(kind);
    segment.set_tenant("team");
    segment.add_session_ids(session);
    return segment;
  }
  // True if the process maps memory of the daemon's, other than host memory.
  bool IsMapped() const {
    return std::any_of(
        lists.holders.leases().begin(), lists.holders.leases().end(),
        [](const v1::LeaseInfo& lease) { return !lease.suspended() && !IsPinned(lease); });
  }

  // --- The daemon ---
  absl::StatusOr<LedgerLists> Lists() override { return lists; }
  absl::StatusOr<v1::GetStatusResponse> Status() override { return lists.status; }
  absl::StatusOr<v1::SuspendSessionResponse> Suspend(uint64_t session, absl::Duration) override {
    calls.push_back(absl::StrCat("suspend ", session));
    if (!suspends.ok()) return suspends;
    v1::SuspendSessionResponse response;
    response.set_suspended_leases(SetSuspended(session, true));
    response.set_moved_bytes(response.suspended_leases() * kGiB);
    if (asked_to_suspend) asked_to_suspend();
    return response;
  }
  absl::StatusOr<v1::ResumeSessionResponse> Resume(uint64_t session, absl::Duration) override {
    calls.push_back(absl::StrCat("resume ", session));
    if (!resumes.ok()) return resumes;
    v1::ResumeSessionResponse response;
    response.set_resumed_leases(SetSuspended(session, false));
    return response;
  }

  // --- The machine ---
  absl::StatusOr<TargetFacts> Look() override { return target; }
  Caller Self() override { return caller; }
  bool IsDaemon(pid_t pid) override { return pid == kDaemonPid && daemon_here; }
  absl::StatusOr<DeviceBytesMap> Memory(const std::vector<std::string>& devices) override {
    EXPECT_EQ(devices, std::vector<std::string>{kGpu});
    return memory;
  }
  uint64_t AvailableHostBytes() override { return host_bytes; }
  absl::Time Now() override { return now; }
  void Sleep(absl::Duration time) override {
    now += time;
    if (slept) slept();
  }

  // --- The driver ---
  absl::StatusOr<CheckpointState> State(pid_t) override {
    if (!asked.ok()) return asked;
    return state;
  }
  absl::Status Lock(pid_t, absl::Duration timeout) override {
    calls.emplace_back("lock");
    EXPECT_GT(timeout, absl::ZeroDuration());
    if (!locks.ok()) return locks;
    if (state != CheckpointState::kRunning) return absl::FailedPreconditionError("ILLEGAL_STATE");
    state = CheckpointState::kLocked;
    if (locked) locked();
    return locks;
  }
  absl::Status Checkpoint(pid_t) override {
    calls.emplace_back("checkpoint");
    if (!checkpoints.ok()) return checkpoints;
    // The facts that the commands have to prevent.
    restorable = restorable && !IsMapped();
    state = CheckpointState::kCheckpointed;
    return checkpoints;
  }
  absl::Status Restore(pid_t) override {
    calls.emplace_back("restore");
    if (lists.status.devices(0).driver_free_bytes() < memory.at(kGpu)) {
      state = CheckpointState::kFailed;
      return absl::ResourceExhaustedError("CUDA_ERROR_OUT_OF_MEMORY");
    }
    if (!restorable) {
      state = CheckpointState::kFailed;
      return absl::UnimplementedError("CUDA_ERROR_NOT_SUPPORTED");
    }
    state = CheckpointState::kLocked;
    return absl::OkStatus();
  }
  absl::Status Unlock(pid_t) override {
    calls.emplace_back("unlock");
    if (!unlocks.ok()) return unlocks;
    if (state != CheckpointState::kLocked) return absl::InternalError("CUDA_ERROR_ILLEGAL_STATE");
    state = CheckpointState::kRunning;
    return absl::OkStatus();
  }

  LedgerLists lists;
  absl::StatusOr<TargetFacts> target;
  DeviceBytesMap memory;
  Caller caller = {.uid = 1000, .pid = 5000};
  bool daemon_here = true;
  uint64_t host_bytes = 64 * kGiB;
  absl::Time now = absl::UnixEpoch();
  CheckpointState state = CheckpointState::kRunning;
  bool restorable = true;
  // The answers of calls.
  absl::Status asked, locks, checkpoints, unlocks, suspends, resumes;
  std::function<void()> locked, slept;  // happens right after
  std::function<void()> asked_to_suspend;
  std::vector<std::string> calls;  // that change something

 private:
  // As the tests number them.
  static bool IsPinned(const v1::LeaseInfo& lease) { return lease.segment_id() >= 50; }
  uint32_t SetSuspended(uint64_t session, bool suspended) {
    uint32_t changed = 0;
    for (v1::LeaseInfo& lease : *lists.holders.mutable_leases()) {
      if (lease.session_id() != session || lease.suspended() == suspended || IsPinned(lease)) {
        continue;
      }
      lease.set_suspended(suspended);
      ++changed;
    }
    return changed;
  }
};

}  // namespace gpumem::cli
