// What the model expects of requests: checks, limits, the making of room, and their ends.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/denial.h"
#include "daemon/core/ledger_model.h"

namespace gpumemd {
namespace {

using gpumem::v1::Denial;

constexpr uint64_t kUnlimited = UINT64_MAX;

}  // namespace

// --- Limits --------------------------------------------------------------------------

bool LedgerModel::Pinned(size_t device) const {
  return devices_[device].kinds == std::vector<Kind>{Kind::kPinned};
}

bool LedgerModel::Makes(size_t device, Kind kind) const {
  for (Kind made : devices_[device].kinds) {
    if (made == kind) return true;
  }
  return false;
}

uint64_t LedgerModel::Obtainable(const std::string& name, size_t device) const {
  const Tenant& tenant = tenants_.at(name);
  uint64_t most = kUnlimited;
  const auto bound = [&](uint64_t limit, uint64_t held) {
    most = std::min(most, limit > held ? limit - held : 0);
  };
  bound(LimitOn(tenant, device), Of(name, device, Which::kHeld).bytes);
  bound(devices_[device].capacity_bytes, Of("", device, Which::kHeld).bytes);
  if (!Pinned(device) && tenant.quota.total_limit_bytes) {
    bound(*tenant.quota.total_limit_bytes, Of(name, kUnpinned, Which::kHeld).bytes);
  }
  return most;
}

absl::StatusOr<size_t> LedgerModel::DeviceFor(const std::string& tenant,
                                              const AcquireSpec& spec) const {
  if (!spec.device_uuid.empty()) {
    if (spec.most_free) return absl::InvalidArgumentError("");
    const size_t device = DeviceIndex(spec.device_uuid);
    if (device >= devices_.size()) return absl::NotFoundError("");
    if (spec.kind && !Makes(device, *spec.kind)) return absl::UnimplementedError("");
    return device;
  }
  std::vector<size_t> makers;
  for (const std::string& uuid : spec.among) {
    if (DeviceIndex(uuid) >= devices_.size()) return absl::NotFoundError("");
  }
  for (size_t device = 0; device < devices_.size(); ++device) {
    bool among = !spec.most_free || spec.among.empty();
    for (const std::string& uuid : spec.among) among |= uuid == devices_[device].uuid;
    if (among && Makes(device, spec.kind.value_or(devices_[0].kinds[0]))) makers.push_back(device);
  }
  if (makers.empty()) return absl::UnimplementedError("");
  if (!spec.most_free) return makers.front();
  // The first of the best.
  return *std::max_element(makers.begin(), makers.end(), [&](size_t a, size_t b) {
    return Obtainable(tenant, a) < Obtainable(tenant, b);
  });
}

uint64_t LedgerModel::LimitOn(const Tenant& tenant, size_t device) const {
  if (Pinned(device)) {
    return std::min(tenant.quota.pinned_limit_bytes.value_or(kUnlimited),
                    devices_[device].capacity_bytes);
  }
  uint64_t limit = tenant.quota.limit_bytes.value_or(kUnlimited);
  auto it = tenant.quota.device_limits.find(devices_[device].uuid);
  if (it != tenant.quota.device_limits.end()) limit = it->second;
  return std::min(limit, devices_[device].capacity_bytes);
}

uint64_t LedgerModel::MaxRetainedOn(const Tenant& tenant, size_t device) const {
  auto it = tenant.quota.device_max_retained.find(devices_[device].uuid);
  if (it != tenant.quota.device_max_retained.end()) return it->second;
  return tenant.quota.max_retained_bytes.value_or(kUnlimited);
}

// Whether what the tenant has, and has not given up, is more than a limit of its own.
bool LedgerModel::OverALimit(const std::string& name, size_t device) const {
  const Tenant& tenant = tenants_.at(name);
  return Of(name, device, Which::kStaying).bytes > LimitOn(tenant, device) ||
         (!Pinned(device) && Of(name, kUnpinned, Which::kStaying).bytes >
                                 tenant.quota.total_limit_bytes.value_or(kUnlimited)) ||
         Of(name, kEverywhere, Which::kStaying).segments >
             tenant.quota.max_segments.value_or(UINT32_MAX);
}

// In the order in which they are given as the reason.
std::vector<LedgerModel::Limit> LedgerModel::LimitsFor(const std::string& name, size_t device,
                                                       uint64_t bytes, uint32_t count,
                                                       const std::set<SegmentId>& reused) const {
  const Tenant& tenant = tenants_.at(name);
  std::vector<Limit> limits;
  const auto add = [&](Denial::Cause cause, absl::string_view whose, size_t where, bool of_bytes,
                       uint64_t limit) {
    const Sum used = Of(whose, where, Which::kAll, reused);
    const Sum held = Of(whose, where, Which::kHeld, reused);
    limits.push_back({cause, where < devices_.size(), of_bytes ? bytes * count : count,
                      of_bytes ? used.bytes : used.segments, of_bytes ? held.bytes : held.segments,
                      limit});
  };
  const uint64_t capacity = devices_[device].capacity_bytes;
  // A tenant without a limit below the capacity is denied for the capacity's sake.
  if (LimitOn(tenant, device) < capacity) {
    add(Denial::CAUSE_DEVICE_LIMIT, name, device, true, LimitOn(tenant, device));
  }
  if (!Pinned(device)) {
    add(Denial::CAUSE_TOTAL_LIMIT, name, kUnpinned, true,
        tenant.quota.total_limit_bytes.value_or(kUnlimited));
  }
  add(Denial::CAUSE_MAX_SEGMENTS, name, kEverywhere, false,
      tenant.quota.max_segments.value_or(UINT32_MAX));
  add(Denial::CAUSE_CAPACITY, "", device, true, capacity);
  add(Denial::CAUSE_DAEMON_LIMIT, "", kEverywhere, false, bounds_.max_segments);
  return limits;
}

// What is retained goes, as far as `fresh` more segments of `bytes` in all need it: the
// tenant's own before others'.
void LedgerModel::GiveUpFor(const std::string& name, size_t device, uint64_t bytes,
                            uint32_t fresh) {
  const Tenant& tenant = tenants_.at(name);
  while (Of(name, device, Which::kStaying).bytes + bytes > LimitOn(tenant, device) &&
         GiveUpOldest(name, device)) {
  }
  if (tenant.quota.total_limit_bytes && !Pinned(device)) {
    while (Of(name, kUnpinned, Which::kStaying).bytes + bytes > *tenant.quota.total_limit_bytes &&
           GiveUpAnywhere(name, /*pinned_too=*/false)) {
    }
  }
  if (tenant.quota.max_segments) {
    while (Of(name, kEverywhere, Which::kStaying).segments + fresh > *tenant.quota.max_segments &&
           GiveUpAnywhere(name)) {
    }
  }
  while (Of("", device, Which::kStaying).bytes + bytes > devices_[device].capacity_bytes &&
         (GiveUpOldest(name, device) || GiveUpOfTheRichest(device))) {
  }
  const auto of_anybody = [&] {
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (GiveUpOfTheRichest(d)) return true;
    }
    return false;
  };
  while (Of("", kEverywhere, Which::kStaying).segments + fresh > bounds_.max_segments &&
         (GiveUpAnywhere(name) || of_anybody())) {
  }
}

// --- Operations ----------------------------------------------------------------------

absl::Status LedgerModel::BeginAcquire(SessionId session_id, const AcquireSpec& spec, bool patient,
                                       absl::Time now,
                                       const absl::StatusOr<std::optional<Operation>>& answer) {
  using absl::StatusCode;
  if (draining_) return ExpectCode(answer.status(), StatusCode::kUnavailable);
  if (!Live(session_id)) return ExpectCode(answer.status(), StatusCode::kAborted);
  const std::string tenant = sessions_.at(session_id).tenant;
  const absl::StatusOr<size_t> chosen = DeviceFor(tenant, spec);
  if (!chosen.ok()) return ExpectCode(answer.status(), chosen.status().code());
  const size_t device = *chosen;
  const DeviceInfo& info = devices_[device];
  const Kind kind = spec.kind.value_or(info.kinds.front());
  if (spec.count == 0 || spec.count > kMaxSegmentsPerCall || spec.bytes == 0 ||
      spec.bytes > info.capacity_bytes) {
    return ExpectCode(answer.status(), StatusCode::kInvalidArgument);
  }
  uint64_t bytes = spec.bytes;
  const bool own_steps = kind == Kind::kMempool && info.pool_granularity_bytes > 0;
  while (bytes % (own_steps ? info.pool_granularity_bytes : info.granularity_bytes) != 0) ++bytes;

  std::set<SegmentId> reused;
  for (const auto& [id, segment] : segments_) {
    if (reused.size() == spec.count) break;
    if (segment.tenant == tenant && segment.device == device && segment.kind == kind &&
        segment.bytes == bytes &&
        (segment.kept_since > 0 || (kind == Kind::kMempool && !segment.lost && !MayMap(id) &&
                                    StateOf(id) == SegmentState::kLingering))) {
      reused.insert(id);
    }
  }
  const uint32_t fresh = spec.count - static_cast<uint32_t>(reused.size());

  bool fits = true;
  absl::Status denied;
  bool denial = false;
  for (const Limit& limit : LimitsFor(tenant, device, bytes, spec.count, reused)) {
    if (limit.Fits(limit.used)) continue;
    fits = false;
    const bool soon = limit.Fits(limit.held);
    if (soon && patient) continue;
    denial = true;
    denied = ExpectDenial(answer.status(), tenant, limit.cause, limit.of_device ? info.uuid : "",
                          limit.asked, soon ? limit.used : limit.held, limit.limit);
    break;
  }
  // They are not free to be given up while the request is looked at, and count as used
  // just now whatever comes of it.
  for (SegmentId id : reused) segments_.at(id).kept_since = 0;
  if (!fits) {
    if (!denial) GiveUpFor(tenant, device, bytes * fresh, fresh);
    for (SegmentId id : reused) Rest(id);
    if (denial) return denied;
    if (answer.ok() && !answer->has_value()) {
      if (!AnyReleasing()) return Wrong("soon, but nothing is on its way back");
      return absl::OkStatus();
    }
    return Wrong("expected soon, got ",
                 answer.ok() ? std::string("a grant") : answer.status().ToString());
  }

  if (!answer.ok()) return Wrong("expected a grant, got ", answer.status().ToString());
  if (!answer->has_value()) return Wrong("expected a grant, got soon");
  const Operation& operation = **answer;
  if (ToInt(operation.id) <= last_operation_ || operation.session != session_id ||
      operation.device != device || operation.kind != kind ||
      operation.items.size() != spec.count) {
    return Wrong("the operation is not what was asked for");
  }
  last_operation_ = ToInt(operation.id);
  auto expected_reuse = reused.begin();
  for (const Operation::Item& item : operation.items) {
    if (ToInt(item.lease) <= last_lease_) return Wrong("a lease's number is used twice");
    last_lease_ = ToInt(item.lease);
    if (expected_reuse != reused.end()) {
      if (item.segment != *expected_reuse++ || !item.reused || item.fresh) {
        return Wrong("expected segment ", ToInt(*std::prev(expected_reuse)), " to be reused");
      }
    } else {
      if (item.reused || !item.fresh || ToInt(item.segment) <= last_segment_) {
        return Wrong("expected a fresh segment with a number of its own");
      }
      last_segment_ = ToInt(item.segment);
      segments_[item.segment] = {
          .tenant = tenant, .device = device, .kind = kind, .bytes = bytes, .created = now};
    }
    mappings_.push_back({session_id, item.segment});
    if (kind == Kind::kMempool) imports_.push_back({session_id, device});
  }
  operations_.emplace(operation.id, operation);
  uint64_t& peak = tenants_.at(tenant).peaks[device];
  peak = std::max(peak, Of(tenant, device, Which::kAll).bytes);
  return absl::OkStatus();
}

absl::Status LedgerModel::BeginOpen(SessionId session_id, absl::Span<const Secret> tickets,
                                    const absl::StatusOr<Operation>& answer) {
  using absl::StatusCode;
  if (draining_) return ExpectCode(answer.status(), StatusCode::kUnavailable);
  if (!Live(session_id)) return ExpectCode(answer.status(), StatusCode::kAborted);
  if (tickets.empty() || tickets.size() > kMaxSegmentsPerCall) {
    return ExpectCode(answer.status(), StatusCode::kInvalidArgument);
  }
  std::vector<SegmentId> expected;
  for (const Secret& ticket : tickets) {
    const Lease* found = nullptr;
    size_t scope = 0;
    for (const auto& [id, lease] : leases_) {
      for (size_t s : {0, 1}) {
        if (lease.tickets[s] == ticket) {
          found = &lease;
          scope = s;
        }
      }
    }
    if (found == nullptr) return ExpectCode(answer.status(), StatusCode::kNotFound);
    if (scope == static_cast<size_t>(TicketScope::kTenant) &&
        segments_.at(found->segment).tenant != sessions_.at(session_id).tenant) {
      return ExpectCode(answer.status(), StatusCode::kPermissionDenied);
    }
    if (segments_.at(found->segment).lost) {
      return ExpectCode(answer.status(), StatusCode::kFailedPrecondition);
    }
    expected.push_back(found->segment);
  }
  if (!answer.ok()) return Wrong("expected an opening, got ", answer.status().ToString());
  if (ToInt(answer->id) <= last_operation_ || answer->session != session_id ||
      answer->items.size() != expected.size()) {
    return Wrong("the operation is not what was asked for");
  }
  last_operation_ = ToInt(answer->id);
  for (size_t i = 0; i < expected.size(); ++i) {
    const Operation::Item& item = answer->items[i];
    if (item.segment != expected[i] || item.fresh || item.reused ||
        ToInt(item.lease) <= last_lease_) {
      return Wrong("ticket ", i, " opened the wrong thing");
    }
    last_lease_ = ToInt(item.lease);
    mappings_.push_back({session_id, item.segment});
    Segment& segment = segments_.at(item.segment);
    if (segment.tenant != sessions_.at(session_id).tenant) segment.shared_out = true;
    if (segment.kind == Kind::kMempool) imports_.push_back({session_id, segment.device});
  }
  operations_.emplace(answer->id, *answer);
  return absl::OkStatus();
}

absl::Status LedgerModel::Commit(OperationId id, const absl::Status& answer) {
  Operation& operation = operations_.at(id);
  const bool live = Live(operation.session);
  while (!operation.items.empty()) {
    const Operation::Item item = operation.items.front();
    operation.items.erase(operation.items.begin());
    if (live) leases_[item.lease] = {operation.session, item.segment, {}};
    if (live && segments_.at(item.segment).lost) bereaved_.insert(operation.session);
    Rest(item.segment);
  }
  operations_.erase(id);
  Sweep();
  return ExpectCode(answer, live ? absl::StatusCode::kOk : absl::StatusCode::kAborted);
}

void LedgerModel::Abort(OperationId id, bool handed_over) {
  Operation& operation = operations_.at(id);
  for (const Operation::Item& item : operation.items) {
    if (handed_over) break;
    if (MayMap(operation.session, item.segment)) Unmap(operation.session, item.segment);
    const Segment& segment = segments_.at(item.segment);
    if (segment.kind == Kind::kMempool) Unimport(operation.session, segment.device, /*all=*/false);
  }
  while (!operation.items.empty()) {
    const Operation::Item item = operation.items.front();
    operation.items.erase(operation.items.begin());
    const bool pool_has_it = segments_.at(item.segment).made && !Importers(item.segment).empty();
    if (item.fresh && !handed_over && !pool_has_it) {
      segments_.at(item.segment).given_up = true;
    } else {
      Rest(item.segment);
    }
  }
  operations_.erase(id);
  Sweep();
}

absl::Status LedgerModel::MakeRoomOnDevice(SessionId session, size_t device, uint64_t bytes,
                                           bool answer) {
  while (Of("", device, Which::kGivenUp).bytes < bytes &&
         (GiveUpOldest(sessions_.at(session).tenant, device) || GiveUpOfTheRichest(device))) {
  }
  const bool expected = Of("", device, Which::kGivenUp).bytes > 0;
  if (answer == expected) return absl::OkStatus();
  return Wrong("expected ", expected ? "" : "no ", "memory to come back");
}

absl::Status LedgerModel::DriverDenial(SessionId session, size_t device, uint64_t bytes,
                                       const absl::Status& answer) {
  return ExpectDenial(answer, sessions_.at(session).tenant, Denial::CAUSE_DRIVER,
                      devices_[device].uuid, bytes, Of("", device, Which::kAll).bytes,
                      devices_[device].capacity_bytes);
}

absl::Status LedgerModel::Release(SessionId id, absl::Span<const LeaseId> leases,
                                  const absl::Status& answer) {
  if (!Live(id)) return ExpectCode(answer, absl::StatusCode::kAborted);
  const std::set<LeaseId> distinct(leases.begin(), leases.end());
  for (LeaseId lease : distinct) {
    auto it = leases_.find(lease);
    if (it == leases_.end() || it->second.session != id) {
      return ExpectCode(answer, absl::StatusCode::kNotFound);
    }
  }
  for (LeaseId lease : distinct) {
    const auto trusts = [&](const std::string& tenant) {
      return tenants_.at(tenant).quota.release == ReleasePolicy::kTrust;
    };
    EndLease(lease, trusts(sessions_.at(id).tenant) && trusts(OwnerOf(leases_.at(lease).segment)));
  }
  return ExpectCode(answer, absl::StatusCode::kOk);
}

absl::Status LedgerModel::Share(SessionId session, LeaseId lease, TicketScope scope,
                                const Secret& candidate, const absl::StatusOr<Secret>& answer) {
  if (!Live(session)) return ExpectCode(answer.status(), absl::StatusCode::kAborted);
  auto it = leases_.find(lease);
  if (it == leases_.end() || it->second.session != session) {
    return ExpectCode(answer.status(), absl::StatusCode::kNotFound);
  }
  const Segment& segment = segments_.at(it->second.segment);
  if (segment.lost || (segment.kind == Kind::kMempool && scope == TicketScope::kAny)) {
    return ExpectCode(answer.status(), absl::StatusCode::kFailedPrecondition);
  }
  std::optional<Secret>& ticket = it->second.tickets[static_cast<size_t>(scope)];
  if (!ticket) ticket = candidate;
  if (answer.ok() && *answer == *ticket) return absl::OkStatus();
  return Wrong("expected the lease's one ticket of this scope, got ", answer.status().ToString());
}

}  // namespace gpumemd
