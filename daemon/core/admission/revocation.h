// SPDX-License-Identifier: Apache-2.0
// Taking back memory that was leased as revocable.
//
// A process holds either firm leases or revocable ones (CheckLeaseType). So a process that is ended
// because it does not give up revoked memory loses nothing that it was promised to keep.
//
// Memory is taken back for a request that is covered by a guarantee, from any tenant; and for one
// of a tenant with a higher priority. The holders with the lowest priority lose theirs first. Among
// them the newest segments go first, since least work is lost with them (candidates.cc).
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/core/admission/room.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/records.h"

namespace gpumemd {

class Revocations {
 public:
  // Deadlines of a revocation, counted from the first notice.
  struct Times {
    absl::Duration grace = absl::Seconds(10);      // until the process is asked to end
    absl::Duration kill_after = absl::Seconds(5);  // after that, until it is ended
  };

  // All must outlive this.
  Revocations(LedgerBase* base, const Room* room)
      : state_(base->state), auditor_(base->auditor), effects_(base->effects), room_(*room) {}

  void SetTimes(const Times& times) { times_ = times; }
  const Times& times() const { return times_; }

  // Begins to take the segments back for this request. The sessions to be told: Effects::revoked.
  void Revoke(absl::Span<const SegmentId> segments, const records::Request& request);

  // Returns when TakeOverdue next has a session to return.
  absl::Time NextOverdue() const;
  // A session whose deadline has passed: its process is to be asked to end, or to be ended.
  struct Overdue {
    SessionId session{};
    bool kill = false;
  };
  std::vector<Overdue> TakeOverdue();

 private:
  using Request = records::Request;
  using Segment = records::Segment;
  using Waiter = records::Waiter;

  // True if a waiter counts on this segment, which is being taken back.
  bool IsWaitedFor(Segment& segment) const;

  LedgerState& state_;
  const Auditor& auditor_;
  Effects& effects_;
  const Room& room_;
  Times times_;
};

}  // namespace gpumemd
