// The states of a segment, by its holders, and how it goes back to the driver.
#include <utility>

#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

void Ledger::Unexpose(SegmentId id, Segment& segment, SessionId session_id, bool all) {
  auto it = segment.exposures.find(session_id);
  if (it == segment.exposures.end()) return;  // its process is gone already
  changes_.Touch(session_id, id);
  if (!all && --it->second > 0) return;
  segment.exposures.erase(it);
  Session& session = *state_.sessions.at(session_id);
  session.exposed.erase(id);
  if (session.exposed.empty()) changes_.Touch(session_id);
  auto process = state_.processes.find(state_.ProcessOf(session));
  if (--process->second.exposures == 0) state_.processes.erase(process);
}

bool Ledger::TrustsRelease(const Session& session, LeaseId lease) const {
  const Tenant& owner = *state_.segments.at(state_.leases.at(lease).segment)->tenant;
  return session.tenant->quota.release == ReleasePolicy::kTrust &&
         owner.quota.release == ReleasePolicy::kTrust;
}

void Ledger::AddLease(LeaseId id, Lease lease) {
  Session& session = *state_.sessions.at(lease.session);
  Segment& segment = *state_.segments.at(lease.segment);
  ++segment.leases;
  session.leases.insert(id);
  if (++session.leased[lease.segment] == 1) session.leased_bytes += segment.charge.bytes();
  state_.leases.Insert(id, std::move(lease));
}

void Ledger::EndLease(LeaseId id, bool unmapped) {
  const Lease lease = state_.leases.at(id);
  for (const std::optional<Secret>& ticket : lease.tickets) {
    if (ticket) state_.tickets.Erase(*ticket);
  }
  state_.leases.Erase(id);
  changes_.Touch(id);
  for (IpcEventId event : state_.events.LeaseEnded(id)) changes_.Touch(event);
  Session& session = *state_.sessions.at(lease.session);
  Segment& segment = *state_.segments.at(lease.segment);
  session.leases.erase(id);
  CountLeases(*session.tenant, -1);
  if (auto leased = session.leased.find(lease.segment); --leased->second == 0) {
    session.leased.erase(leased);
    session.leased_bytes -= segment.charge.bytes();
  }
  Detach(lease.publication, lease.session);
  --segment.leases;
  if (unmapped) Unexpose(lease.segment, segment, lease.session, /*all=*/false);
  Settle(lease.segment, segment);
}

void Ledger::Settle(SegmentId id, Segment& segment) {
  if (segment.leases > 0 || segment.publications > 0) {
    segment.charge.MoveTo(SegmentState::kLeased);
  } else if (segment.pins > 0) {
    segment.charge.MoveTo(SegmentState::kPending);
  } else if (!segment.exposures.empty()) {
    segment.charge.MoveTo(SegmentState::kLingering);
  } else if (state_.HeldByPool(segment)) {
    segment.charge.MoveTo(SegmentState::kLingering);
    if (segment.lost) {
      state_.PoolOf(segment).lost.insert(id);
    } else {
      state_.PoolOf(segment).idle.Add(id, segment.kind, segment.charge.bytes());
      queue_moves_ = true;  // its tenant may wait for exactly this
    }
  } else {
    const Tenant& tenant = *segment.tenant;
    const uint64_t retained = tenant.retained[segment.device].bytes();
    EndRevocation(id, segment);
    queue_moves_ = true;
    const bool keep =
        !segment.lost && !segment.shared_out && !TraitsOf(segment.kind).pooled &&
        !tenant.quota.scrub && !state_.draining && tenant.live_sessions > 0 &&
        state_.WithinLimits(tenant, segment.device) &&
        retained + segment.charge.bytes() <= state_.MaxRetainedOn(tenant, segment.device);
    if (!keep) return Doom(id, segment);
    segment.charge.MoveTo(SegmentState::kRetained);
    segment.tenant->retained[segment.device].Add(id, segment.kind, segment.charge.bytes());
  }
}

void Ledger::Doom(SegmentId id, Segment& segment) {
  EndRevocation(id, segment);
  segment.charge.MoveTo(SegmentState::kReleasing);
  queue_moves_ = true;
  doomed_.push_back(id);
}

bool Ledger::DoomOldest(Tenant& tenant, size_t device) {
  auto id = tenant.retained[device].TakeOldest();
  if (id) Doom(*id, *state_.segments.at(*id));
  return id.has_value();
}

void Ledger::DoomAllRetained(Tenant& tenant) {
  for (size_t device = 0; device < state_.devices.size(); ++device) {
    while (DoomOldest(tenant, device)) {
    }
  }
}

std::vector<SegmentId> Ledger::TakeDoomed() { return std::exchange(doomed_, {}); }

void Ledger::Destroyed(SegmentId id) {
  auto it = state_.segments.find(id);
  Tenant& tenant = *it->second->tenant;
  state_.segments.erase(it);
  changes_.Touch(id);
  queue_moves_ = true;
  ForgetIfIdle(tenant);
}

absl::StatusOr<std::vector<SegmentId>> Ledger::Trim(absl::string_view tenant_name,
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
  const size_t before = doomed_.size();
  for (auto& [name, tenant] : state_.tenants) {
    if (!tenant_name.empty() && name != tenant_name) continue;
    for (size_t device = first; device < end; ++device) {
      while (tenant->retained[device].bytes() > keep_bytes) {
        DoomOldest(*tenant, device);
      }
    }
  }
  return std::vector<SegmentId>(doomed_.begin() + static_cast<ptrdiff_t>(before), doomed_.end());
}

}  // namespace gpumemd
