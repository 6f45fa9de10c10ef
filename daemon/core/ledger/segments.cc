// What a segment's holders make of it, and how it goes back to the driver.
#include <utility>

#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

void Ledger::Unexpose(SegmentId id, Segment& segment, SessionId session_id, bool all) {
  auto it = segment.exposures.find(session_id);
  if (it == segment.exposures.end()) return;  // its process is gone already
  Touch(session_id, id);
  if (!all && --it->second > 0) return;
  segment.exposures.erase(it);
  Session& session = *sessions_.at(session_id);
  session.exposed.erase(id);
  if (session.exposed.empty()) Touch(session_id);
  auto process = processes_.find(ProcessOf(session));
  if (--process->second.exposures == 0) processes_.erase(process);
}

bool Ledger::TrustsRelease(const Session& session, LeaseId lease) const {
  const Tenant& owner = *segments_.at(leases_.at(lease).segment)->tenant;
  return session.tenant->quota.release == ReleasePolicy::kTrust &&
         owner.quota.release == ReleasePolicy::kTrust;
}

void Ledger::AddLease(LeaseId id, Lease lease) {
  Session& session = *sessions_.at(lease.session);
  Segment& segment = *segments_.at(lease.segment);
  ++segment.leases;
  session.leases.insert(id);
  if (++session.leased[lease.segment] == 1) session.leased_bytes += segment.charge.bytes();
  leases_.Insert(id, std::move(lease));
}

void Ledger::EndLease(LeaseId id, bool unmapped) {
  const Lease lease = leases_.at(id);
  for (const std::optional<Secret>& ticket : lease.tickets) {
    if (ticket) tickets_.Erase(*ticket);
  }
  leases_.Erase(id);
  Touch(id);
  for (IpcEventId event : events_.LeaseEnded(id)) Touch(event);
  Session& session = *sessions_.at(lease.session);
  Segment& segment = *segments_.at(lease.segment);
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
  } else if (HeldByPool(segment)) {
    segment.charge.MoveTo(SegmentState::kLingering);
    if (segment.lost) {
      PoolOf(segment).lost.insert(id);
    } else {
      PoolOf(segment).idle.Add(id, segment.kind, segment.charge.bytes());
      queue_moves_ = true;  // its tenant may wait for just that
    }
  } else {
    const Tenant& tenant = *segment.tenant;
    const uint64_t retained = tenant.retained[segment.device].bytes();
    EndRevocation(id, segment);
    queue_moves_ = true;
    const bool keep = !segment.lost && !segment.shared_out && segment.kind != Kind::kMempool &&
                      !tenant.quota.scrub && !draining_ && tenant.live_sessions > 0 &&
                      WithinLimits(tenant, segment.device) &&
                      retained + segment.charge.bytes() <= MaxRetainedOn(tenant, segment.device);
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
  if (id) Doom(*id, *segments_.at(*id));
  return id.has_value();
}

void Ledger::DoomAllRetained(Tenant& tenant) {
  for (size_t device = 0; device < devices_.size(); ++device) {
    while (DoomOldest(tenant, device)) {
    }
  }
}

std::vector<SegmentId> Ledger::TakeDoomed() { return std::exchange(doomed_, {}); }

void Ledger::Destroyed(SegmentId id) {
  auto it = segments_.find(id);
  Tenant& tenant = *it->second->tenant;
  segments_.erase(it);
  Touch(id);
  queue_moves_ = true;
  ForgetIfIdle(tenant);
}

absl::StatusOr<std::vector<SegmentId>> Ledger::Trim(absl::string_view tenant_name,
                                                    absl::string_view device_uuid,
                                                    uint64_t keep_bytes) {
  size_t first = 0, end = devices_.size();
  if (!device_uuid.empty()) {
    absl::StatusOr<size_t> device = FindDevice(device_uuid);
    if (!device.ok()) return device.status();
    first = *device;
    end = first + 1;
  }
  if (!tenant_name.empty() && FindTenant(tenant_name) == nullptr) return NoSuchTenant(tenant_name);
  const size_t before = doomed_.size();
  for (auto& [name, tenant] : tenants_) {
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
