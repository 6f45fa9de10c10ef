// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/revocation.h"

#include <algorithm>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"

namespace gpumemd {

// By the measure of a waiter's request: without this segment it would have to take back another
// one.
bool Revocations::IsWaitedFor(Segment& segment) const {
  const auto revokes = [](const auto& each) { return each.second.revokes; };
  if (std::none_of(state_.waiters.begin(), state_.waiters.end(), revokes)) return false;
  segment.charge.SetRevoking(false);
  bool needed = false;
  Claims claims;
  for (WaiterId id : WaitersInOrder(state_)) {
    const Waiter& waiter = state_.waiters.at(id);
    needed = waiter.revokes &&
             room_.Check(waiter.request, 0, claims, /*exactly=*/true).fit == Fit::kRevoked;
    if (needed) break;
    AddClaims(room_.StandingsOf(waiter.request, 0), waiter.claims, claims);
  }
  segment.charge.SetRevoking(true);
  return needed;
}

void Revocations::Revoke(absl::Span<const SegmentId> segments, const Request& request) {
  auditor_.RevocationChanged(
      AuditEvent::kRevoking, segments,
      absl::StrCat("tenant ", request.tenant->name, " has priority, and waits for ",
                   gpumem::FormatBytes(request.bytes * request.count)));
  for (SegmentId id : segments) {
    Segment& segment = *state_.segments.at(id);
    segment.charge.SetRevoking(true);
    segment.due = state_.now() + times_.grace;
    segment.revocation = Segment::Revocation::kTold;
    state_.revoking.insert(id);
    for (const auto& [session, times] : segment.exposures) effects_.revoked.insert(session);
  }
}

absl::Time Revocations::NextOverdue() const {
  absl::Time next = absl::InfiniteFuture();
  for (SegmentId id : state_.revoking) next = std::min(next, state_.segments.at(id)->due);
  return next;
}

std::vector<Revocations::Overdue> Revocations::TakeOverdue() {
  using Revocation = Segment::Revocation;
  const absl::Time now = state_.now();
  absl::btree_map<SessionId, bool> overdue;
  const absl::btree_set<SegmentId> all = state_.revoking;
  for (SegmentId id : all) {
    Segment& segment = *state_.segments.at(id);
    if (now < segment.due) continue;
    const bool ended = segment.revocation == Revocation::kEnded;
    if (ended || !IsWaitedFor(segment)) {
      // If the holders do not end even by force, others are asked instead. If the waiter has gone,
      // the holders may keep the segment.
      if (ended) segment.charge.SetStuck();
      state_.revoking.erase(id);
      segment.charge.SetRevoking(false);
      auditor_.RevocationChanged(AuditEvent::kRevocationEnded, {id},
                                 ended ? "the processes that hold it have not ended in time"
                                       : "no request waits for it any more");
      continue;
    }
    const bool kill = segment.revocation == Revocation::kAskedToEnd;
    segment.revocation = kill ? Revocation::kEnded : Revocation::kAskedToEnd;
    // Counted from now, not from the missed deadline: a process that is asked to end gets the whole
    // time.
    segment.due = now + times_.kill_after;
    for (const auto& [session, times] : segment.exposures) {
      if (!state_.sessions.at(session)->process_gone) overdue[session] |= kill;
    }
  }
  std::vector<Overdue> list;
  for (const auto& [session, kill] : overdue) list.push_back({session, kill});
  return list;
}

}  // namespace gpumemd
