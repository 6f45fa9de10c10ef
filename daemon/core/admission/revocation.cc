// Taking back memory that was leased as revocable.
//
// A process holds either firm leases or revocable ones. So a process that is ended because it does
// not give up revoked memory loses nothing that it was promised to keep.
//
// Memory is taken back for a request that is covered by a guarantee, from any tenant; and for one
// of a tenant with a higher priority. The holders with the lowest priority lose theirs first. Among
// them the newest segments go first, since least work is lost with them.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

absl::Status Ledger::CheckSort(const Session& session, bool revocable) const {
  if (revocable && !session.details.certain) {
    return absl::FailedPreconditionError(
        "a process that has only just started cannot hold revocable leases: on a kernel older than "
        "6.5 the daemon is not certain whom it would end; connect again in a second");
  }
  auto it = state_.processes.find(state_.ProcessOf(session));
  if (it == state_.processes.end() || it->second.revocable == revocable) return absl::OkStatus();
  return absl::FailedPreconditionError(
      revocable
          ? "this process holds leases that are not revocable, and would lose them with "
            "those that are: release them, or use another process for revocable ones"
          : "this process holds revocable leases, and may be ended to take them back: release "
            "them, ask for this one as revocable, too, or use another process");
}

// By the measure of a waiter's request: without this segment it would have to take back another
// one.
bool Ledger::IsWaitedFor(Segment& segment) const {
  const auto revokes = [](const auto& each) { return each.second.revokes; };
  if (std::none_of(state_.waiters.begin(), state_.waiters.end(), revokes)) return false;
  segment.charge.SetRevoking(false);
  bool needed = false;
  Claims claims;
  for (WaiterId id : WaitersInOrder()) {
    const Waiter& waiter = state_.waiters.at(id);
    needed = waiter.revokes &&
             room_.Judge(waiter.request, 0, claims, /*exactly=*/true).fit == Fit::kRevoked;
    if (needed) break;
    AddClaims(room_.StandingsOf(waiter.request, 0), waiter.claims, claims);
  }
  segment.charge.SetRevoking(true);
  return needed;
}

void Ledger::Revoke(absl::Span<const SegmentId> segments, const Request& request) {
  auditor_.RevocationChanged(
      AuditEvent::kRevoking, segments,
      absl::StrCat("tenant ", request.tenant->name, " goes first, and waits for ",
                   gpumem::FormatBytes(request.bytes * request.count)));
  for (SegmentId id : segments) {
    Segment& segment = *state_.segments.at(id);
    segment.charge.SetRevoking(true);
    segment.due = state_.now() + revocation_times_.grace;
    segment.revocation = Segment::Revocation::kTold;
    state_.revoking.insert(id);
    for (const auto& [session, times] : segment.exposures) revoked_.insert(session);
  }
}

void Ledger::EndRevocation(SegmentId id, Segment& segment) {
  if (state_.revoking.erase(id) == 0) return;
  segment.charge.SetRevoking(false);
  auditor_.RevocationChanged(AuditEvent::kRevoked, {id},
                             segment.revocation == Segment::Revocation::kTold
                                 ? "its holders gave it up, or have ended"
                                 : "the processes that held it were told to end");
}

std::vector<SessionId> Ledger::TakeRevoked() {
  std::vector<SessionId> sessions(revoked_.begin(), revoked_.end());
  revoked_.clear();
  return sessions;
}

absl::Time Ledger::NextOverdue() const {
  absl::Time next = absl::InfiniteFuture();
  for (SegmentId id : state_.revoking) next = std::min(next, state_.segments.at(id)->due);
  return next;
}

std::vector<Ledger::Overdue> Ledger::TakeOverdue() {
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
      segment.stuck = ended;
      state_.revoking.erase(id);
      segment.charge.SetRevoking(false);
      auditor_.RevocationChanged(AuditEvent::kRevocationEnded, {id},
                                 ended ? "the processes that hold it do not end, not even by force"
                                       : "nobody waits for it any more");
      queue_moves_ = true;
      continue;
    }
    const bool kill = segment.revocation == Revocation::kAskedToEnd;
    segment.revocation = kill ? Revocation::kEnded : Revocation::kAskedToEnd;
    // Counted from now, not from the missed deadline: a process that is asked to end gets the whole
    // time.
    segment.due = now + revocation_times_.kill_after;
    for (const auto& [session, times] : segment.exposures) {
      if (!state_.sessions.at(session)->process_gone) overdue[session] |= kill;
    }
  }
  std::vector<Overdue> list;
  for (const auto& [session, kill] : overdue) list.push_back({session, kill});
  return list;
}

}  // namespace gpumemd
