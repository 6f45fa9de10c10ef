// SPDX-License-Identifier: Apache-2.0
// Requests of operators that a session suspends or resumes, or demotes or promotes, all its leases,
// or those with one tag; and of the policy that it suspends all (SwapPolicy).
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
  using Action = records::SuspensionAction;
  using Cause = records::SuspensionCause;

  // Both must outlive this.
  SuspensionRequests(LedgerBase* base, const Suspensions* suspensions)
      : state_(base->state), suspensions_(*suspensions) {}

  // Count the session's watches that accept requests. Require that the session exists. `swappable`:
  // true if the watch opts in to requests of the policy, false if it opts out. `demotes`: true if
  // it accepts requests to demote and promote, too.
  void AddWatch(SessionId session, std::optional<bool> swappable = std::nullopt,
                bool demotes = false);
  void RemoveWatch(SessionId session, std::optional<bool> swappable = std::nullopt,
                   bool demotes = false);

  // Checks that Begin can succeed.
  //   NOT_FOUND            there is no such live session
  //   FAILED_PRECONDITION  there is no tier, or to demote, no device of kind host; or no watch of
  //                        the session accepts such requests
  absl::Status Check(SessionId session, Action action) const;
  // Begins a request, in place of the session's earlier one. Returns its number. Statuses as Check.
  // `tag`: of the leases; empty: all.
  absl::StatusOr<uint64_t> Begin(SessionId session, Action action, absl::Time until,
                                 absl::string_view tag = "", Cause cause = Cause::kOperator);
  // Ends the request, unless it has ended.
  void End(SessionId session, uint64_t request);
  // Returns the session's request; null if it has none, or is not live. Valid until the next
  // change.
  const Request* Find(SessionId session) const;

  // The leases that a request is about.
  struct Due {
    std::vector<LeaseId> leases;  // to suspend, and so on
    size_t done = 0;              // how many others are in the wanted state already
  };
  // Looks at `count` leases of the session, from `next` on, and leaves out those with another tag
  // than `tag`, unless that is empty. Returns the lease to continue from, or nothing.
  std::optional<LeaseId> Collect(SessionId session, Action action, LeaseId next, size_t count,
                                 Due& due, absl::string_view tag = "") const;
  // True if the lease is in the state that the action leads to; to suspend, also its contents are
  // in their place. Also true if it has ended or is lost, and to demote, if it is suspended.
  bool IsDone(LeaseId lease, Action action) const;

  // What a request has led to.
  struct Moved {
    uint64_t leases = 0;
    uint64_t bytes = 0;           // of segments that moved, or that were exchanged, each once
    uint64_t resident_bytes = 0;  // of suspended segments that are still on their devices
    uint64_t dropped_bytes = 0;   // of suspended scratch segments
    absl::flat_hash_set<SegmentId> segments;  // of these leases
  };
  // Adds those of the leases that are in the state that the action leads to.
  void Add(absl::Span<const LeaseId> leases, Action action, Moved& moved) const;

 private:
  void CountWatch(SessionId session, std::optional<bool> swappable, bool demotes, uint32_t change);
  // Returns true if the lease is in the state that the action leads to, false if it is in the state
  // that the action ends, and nothing if the action does not apply to it. Requires that its segment
  // is not lost.
  std::optional<bool> IsReached(const records::Session& session, LeaseId lease,
                                Action action) const;

  LedgerState& state_;
  const Suspensions& suspensions_;
  uint64_t next_request_ = 1;
};

}  // namespace gpumemd
