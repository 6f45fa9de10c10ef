// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/segments.h"

#include <string>
#include <utility>

#include "daemon/core/ledger/bounds.h"
#include "daemon/core/mutant.h"

namespace gpumemd {

void Segments::Settle(SegmentId id, Segment& segment) {
  if (segment.leases > 0 || segment.publications > 0) {
    segment.charge.MoveTo(SegmentState::kLeased);
    if (IsMovable(segment)) state_.to_move.insert(id);
  } else if (segment.pins > 0 && !Mutant(Fault::kForgetsPins)) {
    segment.charge.MoveTo(SegmentState::kPending);
  } else if (!segment.exposures.empty() && !Mutant(Fault::kForgetsMappings)) {
    segment.charge.MoveTo(SegmentState::kLingering);
  } else if (state_.HeldByPool(segment)) {
    segment.charge.MoveTo(SegmentState::kLingering);
    if (segment.lost) {
      state_.PoolOf(segment).lost.insert(id);
    } else {
      state_.PoolOf(segment).idle.Add(id, segment.kind, segment.charge.bytes());
      segment.charge.MarkChanged();  // its state may be as before, and waiters can reuse it now
    }
  } else {
    const Tenant& tenant = *segment.tenant;
    const uint64_t retained = tenant.retained[segment.device].bytes();
    EndRevocation(id, segment);
    const bool keep =
        !segment.lost && (!segment.shared_out || Mutant(Fault::kRetainsSharedOut)) &&
        !TraitsOf(segment.kind).pooled && !TraitsOf(segment.kind).charge_only &&
        segment.kind != Kind::kTier && !tenant.quota.scrub && !state_.draining &&
        !(tenant.made && tenant.made->ending) &&
        (tenant.live_sessions > 0 || Mutant(Fault::kRetainsWithoutSession)) &&
        (state_.WithinLimits(tenant, segment.device) || Mutant(Fault::kRetainsAboveLimit)) &&
        (retained + segment.charge.bytes() <= state_.MaxRetainedOn(tenant, segment.device) ||
         Mutant(Fault::kRetainsAboveMaximum));
    if (!keep) return Doom(id, segment);
    ForgetUse(id, segment);
    segment.charge.MoveTo(SegmentState::kRetained);
    segment.tenant->retained[segment.device].Add(id, segment.kind, segment.charge.bytes());
  }
}

bool Segments::IsMovable(const Segment& segment) {
  return TraitsOf(segment.kind).suspendable && segment.leases > 0 &&
         segment.leases == segment.suspended.size() && segment.leases <= kMaxLeasesMoved &&
         segment.publications == 0 && segment.pins == 0 && segment.exposures.empty() &&
         !segment.copying && !segment.lost && !segment.charge.revocable();
}

void Segments::Unexpose(SegmentId id, Segment& segment, SessionId session_id, bool all) {
  auto it = segment.exposures.find(session_id);
  if (it == segment.exposures.end()) return;  // its process is gone already
  if (!Mutant(Fault::kUnmapsUnjournaled)) changes_.Touch(session_id, id);
  if (!all && --it->second > 0 && !Mutant(Fault::kUnmapsAll)) return;
  segment.exposures.erase(it);
  Session& session = *state_.sessions.at(session_id);
  session.exposed.erase(id);
  if (session.exposed.empty()) changes_.Touch(session_id);
  auto process = state_.processes.find(state_.ProcessOf(session));
  if (--process->second.exposures == 0) state_.processes.erase(process);
}

void Segments::ForgetUse(SegmentId id, Segment& segment) {
  if (segment.scratch || segment.demoted()) changes_.Touch(id);
  segment.scratch = false;
  segment.home = segment.device;
}

void Segments::Doom(SegmentId id, Segment& segment) {
  EndRevocation(id, segment);
  // The journal keeps it until the driver has it back. A restarted daemon may retain it.
  if (segment.kind != Kind::kTier) ForgetUse(id, segment);
  segment.charge.MoveTo(SegmentState::kReleasing);
  effects_.doomed.push_back(id);
}

bool Segments::DoomOldest(Tenant& tenant, size_t device) {
  auto id = tenant.retained[device].TakeOldest();
  if (id) Doom(*id, *state_.segments.at(*id));
  return id.has_value();
}

void Segments::DoomAllRetained(Tenant& tenant) {
  for (size_t device = 0; device < state_.devices.size(); ++device) {
    while (DoomOldest(tenant, device)) {
    }
  }
}

records::Tenant* Segments::RichestRetainer(size_t device, const Tenant* above) {
  return (above == nullptr ? state_.retainers : above->retainers)[device].richest();
}

absl::StatusOr<std::vector<SegmentId>> Segments::Trim(absl::string_view tenant_name,
                                                      absl::string_view device_uuid,
                                                      uint64_t keep_bytes) {
  size_t first = 0, end = state_.devices.size();
  if (!device_uuid.empty()) {
    absl::StatusOr<size_t> device = state_.FindDevice(device_uuid);
    if (!device.ok()) return device.status();
    first = *device;
    end = first + 1;
  }
  if (!tenant_name.empty() && state_.FindTenant(tenant_name) == nullptr)
    return state_.NoSuchTenant(tenant_name);
  const size_t before = effects_.doomed.size();
  for (auto& [name, tenant] : state_.tenants) {
    if (!tenant_name.empty() && name != tenant_name) continue;
    for (size_t device = first; device < end; ++device) {
      while (tenant->retained[device].bytes() > keep_bytes) {
        DoomOldest(*tenant, device);
      }
    }
  }
  return std::vector<SegmentId>(effects_.doomed.begin() + static_cast<ptrdiff_t>(before),
                                effects_.doomed.end());
}

records::Tenant& Segments::Destroyed(SegmentId id) {
  auto it = state_.segments.find(id);
  Tenant& tenant = *it->second->tenant;
  changes_.TouchExtents(id, it->second->extents.size());
  const bool in_tier = it->second->kind == Kind::kTier;
  state_.segments.erase(it);
  state_.to_move.erase(id);
  state_.without_room.erase(id);
  if (!Mutant(Fault::kDestroysUnjournaled)) changes_.Touch(id);
  if (in_tier) RetryMoves();
  return tenant;
}

void Segments::RetryMoves() {
  for (size_t i = 0; i < kMovesRetried && !state_.without_room.empty(); ++i) {
    auto next = state_.without_room.upper_bound(state_.retried);
    if (next == state_.without_room.end()) next = state_.without_room.begin();
    state_.retried = *next;
    state_.to_move.insert(*next);
    state_.without_room.erase(next);
  }
}

void Segments::EndRevocation(SegmentId id, Segment& segment) {
  if (state_.revoking.erase(id) == 0) return;
  segment.charge.SetRevoking(false);
  auditor_.RevocationChanged(AuditEvent::kRevoked, {id},
                             segment.revocation == Segment::Revocation::kTold
                                 ? "its holders released it, or have ended"
                                 : "the processes that held it were told to end");
}

}  // namespace gpumemd
