// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/leases.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/admission/refusals.h"
#include "daemon/core/mutant.h"

namespace gpumemd {

absl::Status Leases::Release(SessionId session_id, absl::Span<const LeaseId> leases) {
  absl::StatusOr<Session*> session = state_.LiveSession(session_id);
  if (!session.ok()) return session.status();
  std::vector<LeaseId> distinct(leases.begin(), leases.end());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  if (absl::Status had = Check(session_id, distinct); !had.ok()) return had;
  auditor_.Released(session_id, distinct);
  for (LeaseId lease : distinct) {
    End(lease, /*unmapped=*/TrustsRelease(**session, lease));
  }
  return absl::OkStatus();
}

absl::Status Leases::Check(SessionId session_id, absl::Span<const LeaseId> leases) const {
  auto session = state_.sessions.find(session_id);
  if (session == state_.sessions.end() || !session->second->live) return SessionEnded();
  for (LeaseId lease : leases) {
    if (!session->second->leases.contains(lease) ||
        state_.leases.at(lease).tag == records::kOverheadTag)
      return NoSuchLease(lease);
  }
  return absl::OkStatus();
}

absl::StatusOr<Secret> Leases::Share(SessionId session_id, LeaseId lease_id, TicketScope scope,
                                     const Secret& candidate, bool given_away) {
  absl::StatusOr<Session*> session = state_.LiveSession(session_id);
  if (!session.ok()) return session.status();
  if (!(*session)->leases.contains(lease_id)) return NoSuchLease(lease_id);
  const SegmentId id = state_.leases.at(lease_id).segment;
  Segment& segment = *state_.segments.at(id);
  if (segment.lost) return LostSegment(id);
  if (TraitsOf(segment.kind).charge_only) {
    return absl::FailedPreconditionError(
        absl::StrCat("a segment of kind ", KindName(segment.kind),
                     " cannot be shared: its memory is of the process's own CUDA driver"));
  }
  // A pool's descriptor opens all of its tenant's segments in the pool.
  const Kind kind = segment.kind == Kind::kTier ? Kind::kVmm : segment.kind;  // once resumed
  if (!TraitsOf(kind).any_tenant && scope == TicketScope::kAny) {
    return absl::FailedPreconditionError(
        "a segment of kind mempool cannot be shared with other tenants: the descriptor of its pool "
        "would open all memory of this tenant in the pool; use kind vmm or ipc");
  }
  if (given_away && !segment.shared_out) {
    segment.shared_out = true;
    changes_.Touch(id);
  }
  std::optional<Secret>& ticket = state_.leases.at(lease_id).tickets[static_cast<size_t>(scope)];
  if (!ticket) {
    ticket = candidate;
    state_.tickets.Insert(candidate, {lease_id, scope});
    changes_.Touch(lease_id);
  }
  return *ticket;
}

void Leases::End(LeaseId id, bool unmapped) {
  const Lease lease = state_.leases.at(id);
  for (const std::optional<Secret>& ticket : lease.tickets) {
    if (ticket && !Mutant(Fault::kReleaseKeepsTicket)) state_.tickets.Erase(*ticket);
  }
  state_.leases.Erase(id);
  if (!Mutant(Fault::kReleaseUnjournaled)) changes_.Touch(id);
  for (IpcEventId event : state_.events.LeaseEnded(id)) changes_.Touch(event);
  Session& session = *state_.sessions.at(lease.session);
  Segment& segment = *state_.segments.at(lease.segment);
  session.leases.erase(id);
  if (!Mutant(Fault::kReleaseKeepsCount)) state_.CountLeases(*session.tenant, -1);
  if (auto leased = session.leased.find(lease.segment); --leased->second == 0) {
    session.leased.erase(leased);
    session.leased_bytes -= segment.charge.bytes();
    if (segment.kind == Kind::kTier) session.tier_bytes -= segment.charge.bytes();
    state_.CountDemoted(session, segment, /*leased=*/false);
  }
  state_.CountDriver(id, lease, session, segment, /*leased=*/false);
  if (!Mutant(Fault::kReleaseKeepsAttached)) publications_.Detach(lease.publication, lease.session);
  --segment.leases;
  segment.suspended.erase(id);
  if (!lease.suspended) {
    state_.CountMapped(lease.session, session, segment, /*mapped=*/false);
  }
  if (unmapped && (!lease.suspended || Mutant(Fault::kReleaseUnmapsSuspended)))
    segments_.Unexpose(lease.segment, segment, lease.session, /*all=*/false);
  segments_.Settle(lease.segment, segment);
}

bool Leases::TrustsRelease(const Session& session, LeaseId lease) const {
  const Segment& segment = *state_.segments.at(state_.leases.at(lease).segment);
  // The memory is of the process's driver: no other tenant gets its contents, and a process that
  // keeps it is seen (daemon/unbrokered).
  if (TraitsOf(segment.kind).charge_only) return true;
  const Tenant& owner = *segment.tenant;
  return session.tenant->quota.release == ReleasePolicy::kTrust &&
         owner.quota.release == ReleasePolicy::kTrust;
}

}  // namespace gpumemd
