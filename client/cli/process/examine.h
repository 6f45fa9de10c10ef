// SPDX-License-Identifier: Apache-2.0
// Which processes may be suspended as a whole. The driver checkpoints some states that it cannot
// restore, and then the process is lost. These rules refuse all of them that the daemon or the
// kernel knows. Pure.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/process/target.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::cli {

// What the daemon knows. The lists are of moments in this order.
struct LedgerLists {
  v1::GetStatusResponse status;
  v1::ListSessionsResponse sessions;
  v1::ListSegmentsResponse segments;
  v1::ListHoldersResponse holders;
};

struct Caller {
  uid_t uid = 0;
  pid_t pid = 0;
};

// Checks that the caller may have the driver act on the process. `daemon_here`: the daemon's pid is
// that of a gpumemd in this PID namespace.
//   UNIMPLEMENTED        the daemon's memory is not of a GPU
//   PERMISSION_DENIED    the process is of another user, and the caller is not root
//   FAILED_PRECONDITION  another PID namespace; the daemon, a process of it or the caller; stopped
absl::Status CheckMayAct(const TargetFacts& target, const v1::GetStatusResponse& daemon,
                         bool daemon_here, const Caller& caller);

struct Examination {
  std::vector<uint64_t> sessions;  // of the process
  std::vector<uint64_t> mapping;   // of these: with memory that has to be suspended first
  // Why it cannot be done, as sentences without their end; empty: it can.
  std::vector<std::string> forbids;
};

// Examines a process before any of its memory is suspended.
Examination ExamineBefore(const TargetFacts& target, const LedgerLists& lists);

// Examines it right before the checkpoint, when it is locked: it can map nothing new then, so each
// mapping of the daemon's memory that it has is in the lists. `sessions` are those found before.
// Returns why it cannot be done; empty: it can.
std::vector<std::string> ExamineLocked(const TargetFacts& target, const LedgerLists& lists,
                                       const std::vector<uint64_t>& sessions);

// Returns the live sessions of the process that have suspended memory.
std::vector<uint64_t> SuspendedSessions(const TargetFacts& target, const LedgerLists& lists);

}  // namespace gpumem::cli
