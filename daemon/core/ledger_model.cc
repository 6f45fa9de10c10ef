#include "daemon/core/ledger_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/denial.h"

namespace gpumemd {
namespace {

using gpumem::v1::Denial;

constexpr uint64_t kUnlimited = UINT64_MAX;
constexpr size_t kEverywhere = SIZE_MAX;

template <typename... What>
absl::Status Wrong(const What&... what) {
  return absl::InternalError(absl::StrCat(what...));
}

absl::Status ExpectCode(const absl::Status& answer, absl::StatusCode code) {
  if (answer.code() == code) return absl::OkStatus();
  return Wrong("expected ", absl::StatusCodeToString(code), ", got ", answer.ToString());
}

}  // namespace

LedgerModel::LedgerModel(std::vector<DeviceInfo> devices, Bounds bounds)
    : devices_(std::move(devices)), bounds_(bounds) {}

// --- Who holds what ------------------------------------------------------------------

bool LedgerModel::Live(SessionId session) const {
  auto it = sessions_.find(session);
  return it != sessions_.end() && it->second.live;
}

bool LedgerModel::MayMap(SessionId session, SegmentId segment) const {
  return std::find(mappings_.begin(), mappings_.end(), Mapping{session, segment}) !=
         mappings_.end();
}

SegmentState LedgerModel::StateOf(SegmentId id) const {
  const Segment& segment = segments_.at(id);
  if (segment.given_up) return SegmentState::kReleasing;
  for (const auto& [lease_id, lease] : leases_) {
    if (lease.segment == id) return SegmentState::kLeased;
  }
  for (const auto& [operation_id, operation] : operations_) {
    for (const Operation::Item& item : operation.items) {
      if (item.segment == id) return SegmentState::kPending;
    }
  }
  for (const Mapping& mapping : mappings_) {
    if (mapping.segment == id) return SegmentState::kLingering;
  }
  return SegmentState::kRetained;
}

// By a lease, an operation or a process that may map it.
bool LedgerModel::Held(SegmentId id) const {
  const SegmentState state = StateOf(id);
  return state == SegmentState::kLeased || state == SegmentState::kPending ||
         state == SegmentState::kLingering;
}

bool LedgerModel::AnyReleasing() const {
  return std::any_of(segments_.begin(), segments_.end(),
                     [](const auto& entry) { return entry.second.given_up; });
}

size_t LedgerModel::DeviceIndex(const std::string& uuid) const {
  size_t index = 0;
  while (index < devices_.size() && devices_[index].uuid != uuid) ++index;
  return index;
}

template <typename Select>
uint64_t LedgerModel::Bytes(const std::string& tenant, size_t device, Select counts) const {
  uint64_t sum = 0;
  for (const auto& [id, segment] : segments_) {
    if (!tenant.empty() && segment.tenant != tenant) continue;
    if (device != kEverywhere && segment.device != device) continue;
    if (counts(id, segment)) sum += segment.bytes;
  }
  return sum;
}

template <typename Select>
uint64_t LedgerModel::Count(const std::string& tenant, size_t device, Select counts) const {
  uint64_t sum = 0;
  for (const auto& [id, segment] : segments_) {
    if (!tenant.empty() && segment.tenant != tenant) continue;
    if (device != kEverywhere && segment.device != device) continue;
    if (counts(id, segment)) ++sum;
  }
  return sum;
}

// --- Limits --------------------------------------------------------------------------

uint64_t LedgerModel::LimitOn(const Tenant& tenant, size_t device) const {
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
  const auto stays = [](SegmentId, const Segment& segment) { return !segment.given_up; };
  return Bytes(name, device, stays) > LimitOn(tenant, device) ||
         Bytes(name, kEverywhere, stays) > tenant.quota.total_limit_bytes.value_or(kUnlimited) ||
         Count(name, kEverywhere, stays) > tenant.quota.max_segments.value_or(UINT32_MAX);
}

// In the order in which they are given as the reason.
std::vector<LedgerModel::Limit> LedgerModel::LimitsFor(const std::string& name, size_t device,
                                                       uint64_t bytes, uint32_t count,
                                                       const std::set<SegmentId>& reused) const {
  const Tenant& tenant = tenants_.at(name);
  const auto used = [&](SegmentId id, const Segment&) { return !reused.contains(id); };
  const auto held = [&](SegmentId id, const Segment& segment) {
    return !reused.contains(id) && !segment.given_up && segment.kept_since == 0;
  };
  std::vector<Limit> limits;
  const auto of_bytes = [&](Denial::Cause cause, const std::string& whose, size_t where,
                            uint64_t limit) {
    limits.push_back({cause, where != kEverywhere, bytes * count, Bytes(whose, where, used),
                      Bytes(whose, where, held), limit});
  };
  const auto of_segments = [&](Denial::Cause cause, const std::string& whose, uint64_t limit) {
    limits.push_back({cause, false, count, Count(whose, kEverywhere, used),
                      Count(whose, kEverywhere, held), limit});
  };
  const uint64_t capacity = devices_[device].capacity_bytes;
  // A tenant without a limit below the capacity is denied for the capacity's sake.
  if (LimitOn(tenant, device) < capacity) {
    of_bytes(Denial::CAUSE_DEVICE_LIMIT, name, device, LimitOn(tenant, device));
  }
  of_bytes(Denial::CAUSE_TOTAL_LIMIT, name, kEverywhere,
           tenant.quota.total_limit_bytes.value_or(kUnlimited));
  of_segments(Denial::CAUSE_MAX_SEGMENTS, name, tenant.quota.max_segments.value_or(UINT32_MAX));
  of_bytes(Denial::CAUSE_CAPACITY, "", device, capacity);
  of_segments(Denial::CAUSE_DAEMON_LIMIT, "", bounds_.max_segments);
  return limits;
}

bool LedgerModel::GiveUpOldest(const std::string& tenant, size_t device) {
  Segment* oldest = nullptr;
  for (auto& [id, segment] : segments_) {
    if (segment.tenant != tenant || segment.device != device || segment.kept_since == 0) continue;
    if (oldest == nullptr || segment.kept_since < oldest->kept_since) oldest = &segment;
  }
  if (oldest == nullptr) return false;
  oldest->kept_since = 0;
  oldest->given_up = true;
  return true;
}

bool LedgerModel::GiveUpAnywhere(const std::string& tenant) {
  for (size_t device = 0; device < devices_.size(); ++device) {
    if (GiveUpOldest(tenant, device)) return true;
  }
  return false;
}

bool LedgerModel::GiveUpOfTheRichest(size_t device) {
  const auto kept = [](SegmentId, const Segment& segment) { return segment.kept_since > 0; };
  std::string richest;
  uint64_t most = 0;
  for (const auto& [name, tenant] : tenants_) {
    const uint64_t bytes = Bytes(name, device, kept);
    if (bytes <= most) continue;
    most = bytes;
    richest = name;
  }
  return most > 0 && GiveUpOldest(richest, device);
}

void LedgerModel::GiveUpAllOf(const std::string& tenant) {
  while (GiveUpAnywhere(tenant)) {
  }
}

// What is retained goes, as far as `fresh` more segments of `bytes` in all need it: the
// tenant's own before others'.
void LedgerModel::GiveUpFor(const std::string& name, size_t device, uint64_t bytes,
                            uint32_t fresh) {
  const Tenant& tenant = tenants_.at(name);
  const auto stays = [](SegmentId, const Segment& segment) { return !segment.given_up; };
  while (Bytes(name, device, stays) + bytes > LimitOn(tenant, device) &&
         GiveUpOldest(name, device)) {
  }
  if (tenant.quota.total_limit_bytes) {
    while (Bytes(name, kEverywhere, stays) + bytes > *tenant.quota.total_limit_bytes &&
           GiveUpAnywhere(name)) {
    }
  }
  if (tenant.quota.max_segments) {
    while (Count(name, kEverywhere, stays) + fresh > *tenant.quota.max_segments &&
           GiveUpAnywhere(name)) {
    }
  }
  while (Bytes("", device, stays) + bytes > devices_[device].capacity_bytes &&
         (GiveUpOldest(name, device) || GiveUpOfTheRichest(device))) {
  }
  const auto of_anybody = [&] {
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (GiveUpOfTheRichest(d)) return true;
    }
    return false;
  };
  while (Count("", kEverywhere, stays) + fresh > bounds_.max_segments &&
         (GiveUpAnywhere(name) || of_anybody())) {
  }
}

// --- Tenants -------------------------------------------------------------------------

void LedgerModel::ApplyQuota(const std::string& name, const Quota& quota) {
  tenants_.at(name).quota = quota;
  const auto kept = [](SegmentId, const Segment& segment) { return segment.kept_since > 0; };
  for (size_t device = 0; device < devices_.size(); ++device) {
    while (Bytes(name, device, kept) > MaxRetainedOn(tenants_.at(name), device)) {
      GiveUpOldest(name, device);
    }
    GiveUpFor(name, device, 0, 0);
  }
}

void LedgerModel::Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults) {
  defaults_ = defaults;
  for (const auto& [name, quota] : tenants) {
    tenants_[name].peaks.resize(devices_.size());
  }
  for (auto& [name, tenant] : tenants_) {
    auto it = tenants.find(name);
    tenant.configured = it != tenants.end();
    ApplyQuota(name, tenant.configured ? it->second : defaults);
  }
  Sweep();
}

absl::Status LedgerModel::SetQuota(const std::string& name, const Quota& quota,
                                   const absl::Status& answer) {
  bool known = tenants_.contains(name);
  for (const auto& [uuid, limit] : quota.device_limits) {
    known = known && DeviceIndex(uuid) < devices_.size();
  }
  if (!known) return ExpectCode(answer, absl::StatusCode::kNotFound);
  ApplyQuota(name, quota);
  return ExpectCode(answer, absl::StatusCode::kOk);
}

void LedgerModel::SetDraining(bool draining) {
  draining_ = draining;
  if (!draining) return;
  for (const auto& [name, tenant] : tenants_) GiveUpAllOf(name);
}

// --- Sessions ------------------------------------------------------------------------

absl::Status LedgerModel::ExpectDenial(const absl::Status& answer, const std::string& tenant,
                                       Denial::Cause cause, absl::string_view device,
                                       uint64_t asked, uint64_t used, uint64_t limit) {
  ++tenants_.at(tenant).denials;
  const std::optional<Denial> denial = gpumem::DenialOf(answer);
  if (absl::IsResourceExhausted(answer) && denial && denial->cause() == cause &&
      denial->tenant() == tenant && denial->device_uuid() == device && denial->asked() == asked &&
      denial->used() == used && denial->limit() == limit && !denial->help().empty()) {
    return absl::OkStatus();
  }
  return Wrong("expected a denial of ", tenant, " by ", Denial::Cause_Name(cause), " on \"", device,
               "\", asked ", asked, ", used ", used, ", limit ", limit, "; got ",
               answer.ToString(), denial ? denial->ShortDebugString() : "");
}

absl::Status LedgerModel::OpenSession(const std::string& name, const std::string& client,
                                      absl::Time now, const Secret& token,
                                      const absl::StatusOr<SessionId>& answer) {
  if (draining_) return ExpectCode(answer.status(), absl::StatusCode::kUnavailable);
  if (!tenants_.contains(name)) {
    tenants_[name] = {.quota = defaults_, .peaks = std::vector<uint64_t>(devices_.size())};
  }
  const auto sessions = static_cast<uint64_t>(
      std::count_if(sessions_.begin(), sessions_.end(),
                    [&](const auto& entry) { return entry.second.tenant == name; }));
  const uint64_t limit = tenants_.at(name).quota.max_sessions.value_or(UINT32_MAX);
  absl::Status verdict;
  if (sessions >= limit) {
    verdict = ExpectDenial(answer.status(), name, Denial::CAUSE_MAX_SESSIONS, "", 1, sessions,
                           limit);
  } else if (sessions_.size() >= bounds_.max_sessions) {
    verdict = ExpectDenial(answer.status(), name, Denial::CAUSE_DAEMON_LIMIT, "", 1,
                           sessions_.size(), bounds_.max_sessions);
  } else if (!answer.ok() || ToInt(*answer) <= last_session_) {
    return Wrong("expected a new session, got ", answer.status().ToString());
  } else {
    last_session_ = ToInt(*answer);
    sessions_[*answer] = {.tenant = name, .client = client, .token = token, .opened = now};
  }
  Sweep();
  return verdict;
}

void LedgerModel::EndSession(SessionId id) {
  Session& session = sessions_.at(id);
  if (!session.live) return;
  session.live = false;
  std::vector<LeaseId> ended;
  for (const auto& [lease_id, lease] : leases_) {
    if (lease.session == id) ended.push_back(lease_id);
  }
  for (LeaseId lease : ended) EndLease(lease, /*unmapped=*/false);
  const bool others_live = std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.second.live && entry.second.tenant == session.tenant;
  });
  if (!others_live) GiveUpAllOf(session.tenant);
}

void LedgerModel::SocketClosed(SessionId id) {
  if (!sessions_.contains(id)) return;
  EndSession(id);
  Sweep();
}

void LedgerModel::ProcessGone(SessionId id) {
  if (!sessions_.contains(id)) return;
  sessions_.at(id).process_gone = true;
  std::set<SegmentId> unmapped;
  for (const Mapping& mapping : mappings_) {
    if (mapping.session == id) unmapped.insert(mapping.segment);
  }
  for (SegmentId segment : unmapped) {
    while (MayMap(id, segment)) Unmap(id, segment);
    Rest(segment);
  }
  EndSession(id);
  Sweep();
}

void LedgerModel::Sweep() {
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const SessionId id = it->first;
    const bool needed =
        it->second.live || it->second.calls > 0 ||
        std::any_of(mappings_.begin(), mappings_.end(),
                    [&](const Mapping& mapping) { return mapping.session == id; }) ||
        std::any_of(operations_.begin(), operations_.end(),
                    [&](const auto& entry) { return entry.second.session == id; });
    if (needed) {
      ++it;
      continue;
    }
    forgotten_.push_back(id);
    it = sessions_.erase(it);
  }
  std::erase_if(tenants_, [&](const auto& entry) {
    const std::string& name = entry.first;
    return !entry.second.configured &&
           std::none_of(sessions_.begin(), sessions_.end(),
                        [&](const auto& session) { return session.second.tenant == name; }) &&
           std::none_of(segments_.begin(), segments_.end(),
                        [&](const auto& segment) { return segment.second.tenant == name; });
  });
}

absl::Status LedgerModel::TakeForgotten(std::vector<SessionId> answer) {
  std::vector<SessionId> expected = std::exchange(forgotten_, {});
  std::sort(expected.begin(), expected.end());
  std::sort(answer.begin(), answer.end());
  if (answer == expected) return absl::OkStatus();
  return Wrong("expected ", expected.size(), " sessions to be forgotten, got ", answer.size());
}

absl::Status LedgerModel::BeginCall(SessionId id, const absl::Status& answer) {
  if (!Live(id)) return ExpectCode(answer, absl::StatusCode::kAborted);
  const std::string& tenant = sessions_.at(id).tenant;
  uint64_t calls = 0;
  for (const auto& [other_id, other] : sessions_) {
    if (other.tenant == tenant) calls += other.calls;
  }
  const uint64_t limit = tenants_.at(tenant).quota.max_in_flight.value_or(UINT32_MAX);
  if (calls >= limit) {
    return ExpectDenial(answer, tenant, Denial::CAUSE_MAX_IN_FLIGHT, "", 1, calls, limit);
  }
  ++sessions_.at(id).calls;
  return ExpectCode(answer, absl::StatusCode::kOk);
}

void LedgerModel::EndCall(SessionId id) {
  --sessions_.at(id).calls;
  Sweep();
}

// --- Operations ----------------------------------------------------------------------

absl::Status LedgerModel::BeginAcquire(SessionId session_id, const AcquireSpec& spec, bool patient,
                                       absl::Time now,
                                       const absl::StatusOr<std::optional<Operation>>& answer) {
  using absl::StatusCode;
  if (draining_) return ExpectCode(answer.status(), StatusCode::kUnavailable);
  if (!Live(session_id)) return ExpectCode(answer.status(), StatusCode::kAborted);
  const size_t device = spec.device_uuid.empty() ? 0 : DeviceIndex(spec.device_uuid);
  if (device >= devices_.size()) return ExpectCode(answer.status(), StatusCode::kNotFound);
  const DeviceInfo& info = devices_[device];
  const Kind kind = spec.kind.value_or(info.kinds.front());
  if (kind != Kind::kVmm) return ExpectCode(answer.status(), StatusCode::kUnimplemented);
  if (spec.count == 0 || spec.count > kMaxSegmentsPerCall || spec.bytes == 0 ||
      spec.bytes > info.capacity_bytes) {
    return ExpectCode(answer.status(), StatusCode::kInvalidArgument);
  }
  uint64_t bytes = spec.bytes;
  while (bytes % info.granularity_bytes != 0) ++bytes;

  const std::string tenant = sessions_.at(session_id).tenant;
  std::set<SegmentId> reused;
  for (const auto& [id, segment] : segments_) {
    if (reused.size() == spec.count) break;
    if (segment.tenant == tenant && segment.device == device && segment.kind == kind &&
        segment.bytes == bytes && segment.kept_since > 0) {
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
    for (SegmentId id : reused) segments_.at(id).kept_since = ++clock_;
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
  }
  operations_.emplace(operation.id, operation);
  uint64_t& peak = tenants_.at(tenant).peaks[device];
  peak = std::max(peak, Bytes(tenant, device, [](SegmentId, const Segment&) { return true; }));
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
    Rest(item.segment);
  }
  operations_.erase(id);
  Sweep();
  return ExpectCode(answer, live ? absl::StatusCode::kOk : absl::StatusCode::kAborted);
}

void LedgerModel::Abort(OperationId id, bool handed_over) {
  Operation& operation = operations_.at(id);
  while (!operation.items.empty()) {
    const Operation::Item item = operation.items.front();
    operation.items.erase(operation.items.begin());
    if (!handed_over && MayMap(operation.session, item.segment)) {
      Unmap(operation.session, item.segment);
    }
    if (item.fresh && !handed_over) {
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
  const auto releasing = [](SegmentId, const Segment& segment) { return segment.given_up; };
  while (Bytes("", device, releasing) < bytes &&
         (GiveUpOldest(sessions_.at(session).tenant, device) || GiveUpOfTheRichest(device))) {
  }
  const bool expected = Bytes("", device, releasing) > 0;
  if (answer == expected) return absl::OkStatus();
  return Wrong("expected ", expected ? "" : "no ", "memory to come back");
}

absl::Status LedgerModel::DriverDenial(SessionId session, size_t device, uint64_t bytes,
                                       const absl::Status& answer) {
  return ExpectDenial(answer, sessions_.at(session).tenant, Denial::CAUSE_DRIVER,
                      devices_[device].uuid, bytes,
                      Bytes("", device, [](SegmentId, const Segment&) { return true; }),
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
  std::optional<Secret>& ticket = it->second.tickets[static_cast<size_t>(scope)];
  if (!ticket) ticket = candidate;
  if (answer.ok() && *answer == *ticket) return absl::OkStatus();
  return Wrong("expected the lease's one ticket of this scope, got ", answer.status().ToString());
}

// --- Giving memory back --------------------------------------------------------------

void LedgerModel::Unmap(SessionId session, SegmentId segment) {
  mappings_.erase(std::find(mappings_.begin(), mappings_.end(), Mapping{session, segment}));
}

void LedgerModel::EndLease(LeaseId id, bool unmapped) {
  const Lease lease = leases_.at(id);
  leases_.erase(id);
  if (unmapped) Unmap(lease.session, lease.segment);
  Rest(lease.segment);
}

void LedgerModel::Rest(SegmentId id) {
  if (Held(id)) return;
  Segment& segment = segments_.at(id);
  const Tenant& tenant = tenants_.at(segment.tenant);
  const bool tenant_lives = std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.second.live && entry.second.tenant == segment.tenant;
  });
  const auto kept = [](SegmentId, const Segment& other) { return other.kept_since > 0; };
  if (!draining_ && tenant_lives && !OverALimit(segment.tenant, segment.device) &&
      Bytes(segment.tenant, segment.device, kept) + segment.bytes <=
          MaxRetainedOn(tenant, segment.device)) {
    segment.kept_since = ++clock_;
  } else {
    segment.given_up = true;
  }
}

absl::Status LedgerModel::TakeDoomed(const std::vector<SegmentId>& answer) {
  for (SegmentId id : answer) {
    auto it = segments_.find(id);
    if (it == segments_.end() || !it->second.given_up) {
      return Wrong("segment ", ToInt(id), " is doomed though it should live");
    }
    for (const Mapping& mapping : mappings_) {
      if (mapping.segment == id) return Wrong("segment ", ToInt(id), " is doomed while mapped");
    }
    if (!in_destruction_.insert(id).second) return Wrong("segment ", ToInt(id), " doomed twice");
  }
  for (const auto& [id, segment] : segments_) {
    if (segment.given_up && !in_destruction_.contains(id)) {
      return Wrong("segment ", ToInt(id), " should be doomed");
    }
  }
  return absl::OkStatus();
}

void LedgerModel::Destroyed(SegmentId id) {
  in_destruction_.erase(id);
  segments_.erase(id);
  Sweep();
}

absl::Status LedgerModel::Trim(const std::string& tenant, const std::string& device,
                               uint64_t keep_bytes,
                               const absl::StatusOr<std::vector<SegmentId>>& answer) {
  if ((!tenant.empty() && !tenants_.contains(tenant)) ||
      (!device.empty() && DeviceIndex(device) >= devices_.size())) {
    return ExpectCode(answer.status(), absl::StatusCode::kNotFound);
  }
  if (!answer.ok()) return Wrong("expected a trim, got ", answer.status().ToString());
  const auto given_up = [](SegmentId, const Segment& segment) { return segment.given_up; };
  const auto kept = [](SegmentId, const Segment& segment) { return segment.kept_since > 0; };
  const uint64_t before = Count("", kEverywhere, given_up);
  for (const auto& [name, entry] : tenants_) {
    if (!tenant.empty() && name != tenant) continue;
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (!device.empty() && devices_[d].uuid != device) continue;
      while (Bytes(name, d, kept) > keep_bytes) GiveUpOldest(name, d);
    }
  }
  const std::set<SegmentId> distinct(answer->begin(), answer->end());
  if (distinct.size() != answer->size() ||
      answer->size() != Count("", kEverywhere, given_up) - before) {
    return Wrong("expected ", Count("", kEverywhere, given_up) - before, " trimmed segments, got ",
                 answer->size());
  }
  for (SegmentId id : distinct) {
    auto it = segments_.find(id);
    if (it == segments_.end() || !it->second.given_up || in_destruction_.contains(id)) {
      return Wrong("segment ", ToInt(id), " was trimmed though it was not retained");
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
