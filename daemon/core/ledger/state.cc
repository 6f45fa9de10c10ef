// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/state.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/admission/refusals.h"
#include "daemon/core/admission/sums.h"
#include "daemon/core/quota/guarantees.h"

namespace gpumemd {

LedgerState::LedgerState(std::vector<DeviceInfo> infos, Bounds limits,
                         std::function<absl::Time()> clock, UsageClock usage)
    : devices(std::move(infos)),
      bounds(limits),
      now(std::move(clock)),
      usage_clock(std::move(usage)),
      device_accounts(devices.size()),
      retainers(devices.size()),
      reclaimed(devices.size(), 0),
      suspended(devices.size(), 0),
      resumed(devices.size(), 0) {
  if (usage_clock == nullptr) usage_clock = [this] { return now() - absl::UnixEpoch(); };
  for (Account& account : device_accounts) account.meter().SetClock(&usage_clock);
}

LedgerState::~LedgerState() {
  usage_clock = nullptr;  // what it reads may be gone
  segments.clear();
}

uint64_t LedgerState::TotalCharged(const Tenant& tenant) const {
  return SumUnpinned(devices, tenant.accounts,
                     [](const Account& account) { return account.charged(); });
}

uint64_t LedgerState::TotalSegments(const Tenant& tenant) {
  return SumOver(tenant.accounts, [](const Account& account) { return account.segments(); });
}

uint64_t LedgerState::LimitOn(const Tenant& tenant, size_t device) const {
  return std::min(gpumemd::LimitOn(tenant.quota, devices[device]), devices[device].capacity_bytes);
}

uint64_t LedgerState::GuaranteeOn(const Tenant& tenant, size_t device) const {
  return gpumemd::GuaranteeOn(tenant.quota, devices[device]);
}

uint64_t LedgerState::MaxRetainedOn(const Tenant& tenant, size_t device) const {
  auto it = tenant.quota.device_max_retained.find(devices[device].uuid);
  if (it != tenant.quota.device_max_retained.end()) return it->second;
  return tenant.quota.max_retained_bytes.value_or(kUnlimited);
}

bool LedgerState::WithinLimits(const Tenant& tenant, size_t device) const {
  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    const bool within =
        Staying(each->accounts[device]) <= LimitOn(*each, device) &&
        (IsHostMemory(devices[device]) || SumUnpinned(devices, each->accounts, Staying) <=
                                              each->quota.total_limit_bytes.value_or(kUnlimited)) &&
        SumOver(each->accounts, StayingSegments) <= each->quota.max_segments.value_or(kUnlimited);
    if (!within) return false;
  }
  return true;
}

LedgerState::Tenant* LedgerState::FindTenant(absl::string_view name) {
  auto it = tenants.find(std::string(name));
  return it == tenants.end() ? nullptr : it->second.get();
}

const LedgerState::Tenant* LedgerState::FindTenant(absl::string_view name) const {
  return const_cast<LedgerState*>(this)->FindTenant(name);
}

bool LedgerState::IsUnder(const Tenant& tenant, const Tenant& above) {
  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    if (each == &above) return true;
  }
  return false;
}

LedgerState::ProcessKey LedgerState::ProcessOf(const Session& session) {
  return {session.details.peer.pid, session.details.peer.start_time};
}

uint64_t LedgerState::UnbrokeredOf(const Tenant& tenant, absl::string_view device_uuid) const {
  uint64_t bytes = 0;
  for (const UnbrokeredBytes& use : unbrokered) {
    if (use.device_uuid != device_uuid) continue;
    auto session = sessions.find(use.session);
    if (session != sessions.end() && session->second->tenant == &tenant) bytes += use.bytes;
  }
  return bytes;
}

uint64_t LedgerState::UnbrokeredOf(SessionId session) const {
  uint64_t bytes = 0;
  for (const UnbrokeredBytes& use : unbrokered) {
    if (use.session == session) bytes += use.bytes;
  }
  return bytes;
}

absl::StatusOr<size_t> LedgerState::FindDevice(absl::string_view uuid) const {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].uuid == uuid) return i;
  }
  return absl::NotFoundError(
      absl::StrCat("this node has no device \"", uuid, "\"; gpumemctl devices lists those it has"));
}

absl::Status LedgerState::NoSuchTenant(absl::string_view name) {
  return absl::NotFoundError(
      absl::StrCat("no tenant \"", name, "\" is configured, holds memory or has a session"));
}

std::optional<uint64_t> LedgerState::AnswerTo(const Session& session, uint64_t request) {
  auto it = std::find_if(session.answers.begin(), session.answers.end(),
                         [&](const Session::Answer& each) { return each.request == request; });
  if (request == 0 || it == session.answers.end()) return std::nullopt;
  return it->number;
}

uint64_t LedgerState::IdleInPools(const Tenant& tenant, std::optional<size_t> device) {
  if (device) return tenant.pools[*device].idle.bytes();
  uint64_t bytes = 0;
  for (const Pool& pool : tenant.pools) bytes += pool.idle.bytes();
  return bytes;
}

absl::Time LedgerState::ExpiryOf(const Publication& publication) const {
  if (!publication.attached.empty()) return absl::InfiniteFuture();
  return publication.idle_since + publication.expire_after;
}

bool LedgerState::MayAttach(const Publication& publication, const Tenant& reader) {
  return publication.to_any || publication.tenant == &reader;
}

const LedgerState::Publication* LedgerState::FindPublication(const PublicationName& name,
                                                             const Tenant* reader) const {
  auto it = by_name.find(name);
  if (it == by_name.end()) return nullptr;
  const Publication& publication = publications.at(it->second);
  return reader == nullptr || MayAttach(publication, *reader) ? &publication : nullptr;
}

absl::Status LedgerState::CheckGoesOn(const Tenant& tenant) {
  if (!tenant.made || !tenant.made->ending) return absl::OkStatus();
  return TenantEnded(tenant.name);
}

const LedgerState::Tenant* LedgerState::TreeOf(const Tenant& tenant) {
  const Tenant* top = &tenant;
  while (top->parent != nullptr) top = top->parent;
  return top;
}

absl::StatusOr<SessionId> LedgerState::FindByToken(const Secret& token) const {
  auto it = tokens.find(token);
  if (it == tokens.end()) return absl::NotFoundError("no live session has this token");
  return it->second;
}

absl::StatusOr<LedgerState::Session*> LedgerState::LiveSession(SessionId id) {
  auto it = sessions.find(id);
  if (it == sessions.end() || !it->second->live) return SessionEnded();
  return it->second.get();
}

void LedgerState::AddLease(LeaseId id, records::Lease lease) {
  Session& session = *sessions.at(lease.session);
  Segment& segment = *segments.at(lease.segment);
  ++segment.leases;
  session.leases.insert(id);
  if (++session.leased[lease.segment] == 1) {
    session.leased_bytes += segment.charge.bytes();
    if (segment.kind == Kind::kTier) session.tier_bytes += segment.charge.bytes();
    CountDemoted(session, segment, /*leased=*/true);
  }
  CountDriver(id, lease, session, segment, /*leased=*/true);
  if (!lease.suspended) CountMapped(lease.session, session, segment, /*mapped=*/true);
  leases.Insert(id, lease);
}

void LedgerState::CountMapped(SessionId id, Session& session, const Segment& segment, bool mapped) {
  if (!IsSuspendable(session, segment)) return;
  records::Residence& residence = session.residences[segment.device];
  const uint64_t bytes = segment.charge.bytes(), kept = segment.scratch ? 0 : bytes;
  if (mapped) {
    residence.bytes += bytes;
    residence.kept += kept;
    residence.since = now();
  } else {
    residence.bytes -= bytes;
    residence.kept -= kept;
  }
  if (session.suspension_watches > 0) swaps_changed.insert(id);
}

void LedgerState::CountDriver(LeaseId id, const records::Lease& lease, Session& session,
                              const Segment& segment, bool leased) {
  if (!TraitsOf(segment.kind).charge_only) return;
  if (lease.tag == records::kOverheadTag) {
    std::vector<LeaseId>& overheads = session.overheads[segment.device];
    if (leased) overheads.push_back(id);
    if (!leased) std::erase(overheads, id);
    if (overheads.empty()) session.overheads.erase(segment.device);
    return;
  }
  uint64_t& bytes = session.driver_bytes[segment.device];
  bytes += leased ? segment.charge.bytes() : 0 - segment.charge.bytes();
  if (bytes == 0) session.driver_bytes.erase(segment.device);
}

void LedgerState::CountDemoted(Session& session, const Segment& segment, bool leased) {
  if (!segment.demoted()) return;
  const uint64_t change = leased ? segment.charge.bytes() : 0 - segment.charge.bytes();
  session.demoted_bytes += change;
  for (Tenant* each = session.tenant; each != nullptr; each = each->parent) {
    each->demoted_bytes += change;
  }
}

void LedgerState::CountLeases(Tenant& tenant, int64_t change) {
  tenant.books->leases += static_cast<uint64_t>(change);
  lease_count += static_cast<uint64_t>(change);
}

}  // namespace gpumemd
