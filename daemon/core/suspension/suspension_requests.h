// SPDX-License-Identifier: Apache-2.0
// Requests of operators that a session suspends all its leases, or those with one tag, or resumes
// them; and of the policy that it suspends all (SwapPolicy).
//
// The session's client does it, by the calls of any client. A request says what to do until when; a
// session has at most one. It is not recorded for the next daemon: the operator's call ends with
// this one, and the next daemon's policy decides anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/suspension/suspensions.h"

namespace gpumemd {

class SuspensionRequests {
 public:
  using Request = records::SuspensionRequest;
  using Cause = records::SuspensionCause;

  // Both must outlive this.
  SuspensionRequests(LedgerBase* base, const Suspensions* suspensions)
      : state_(base->state), suspensions_(*suspensions) {}

  // Count the session's watches that accept requests. Require that the session exists. `swappable`:
  // true if the watch opts in to requests of the policy, false if it opts out.
  void AddWatch(SessionId session, std::optional<bool> swappable = std::nullopt);
  void RemoveWatch(SessionId session, std::optional<bool> swappable = std::nullopt);

  // Checks that Begin can succeed.
  //   NOT_FOUND            there is no such live session
  //   FAILED_PRECONDITION  there is no tier, or no watch of the session accepts requests
  absl::Status Check(SessionId session) const;
  // Begins a request, in place of the session's earlier one. Returns its number. Statuses as Check.
  // `tag`: of the leases; empty: all.
  absl::StatusOr<uint64_t> Begin(SessionId session, bool resume, absl::Time until,
                                 absl::string_view tag = "", Cause cause = Cause::kOperator);
  // Ends the request, unless it has ended.
  void End(SessionId session, uint64_t request);
  // Returns the session's request; null if it has none, or is not live. Valid until the next
  // change.
  const Request* Find(SessionId session) const;

  // The leases that a request is about.
  struct Due {
    std::vector<LeaseId> leases;  // to suspend, or to resume
    size_t done = 0;              // how many others are in that state already
  };
  // Looks at `count` leases of the session, from `next` on, and leaves out those with another tag
  // than `tag`, unless that is empty. Returns the lease to continue from, or nothing.
  std::optional<LeaseId> Collect(SessionId session, bool resume, LeaseId next, size_t count,
                                 Due& due, absl::string_view tag = "") const;
  // True if the lease is suspended and its contents are in their place, or with `resume`, if it is
  // resumed. Also true if it has ended or is lost.
  bool IsDone(LeaseId lease, bool resume) const;

  // What a request has led to.
  struct Moved {
    uint64_t leases = 0;
    uint64_t bytes = 0;           // of segments that moved, each once
    uint64_t resident_bytes = 0;  // of suspended segments that are still on their devices
    uint64_t dropped_bytes = 0;   // of suspended scratch segments
    absl::flat_hash_set<SegmentId> segments;  // of these leases
  };
  // Adds those of the leases that are suspended, or with `resume`, resumed.
  void Add(absl::Span<const LeaseId> leases, bool resume, Moved& moved) const;

 private:
  void CountWatch(SessionId session, std::optional<bool> swappable, uint32_t change);

  LedgerState& state_;
  const Suspensions& suspensions_;
  uint64_t next_request_ = 1;
};

}  // namespace gpumemd
