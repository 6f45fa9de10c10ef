// SPDX-License-Identifier: Apache-2.0
// Tenants that an earlier daemon made at run time: their records in the journal, and back.
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/kind.h"
#include "common/quota_keys.h"
#include "daemon/core/ledger/made/journal.h"
#include "daemon/core/ledger/made/made_tenants.h"
#include "daemon/core/quota/guarantees.h"

namespace gpumemd {
namespace {

uint64_t BitOf(absl::string_view field) {
  return uint64_t{1} << gpumem::FindQuotaKey(field)->number;
}

uint64_t BitsOf(const auto& fields) {
  uint64_t bits = 0;
  for (const std::string& field : fields) {
    if (gpumem::FindQuotaKey(field) != nullptr) bits |= BitOf(field);
  }
  return bits;
}

// Returns the value of an optional field in the journal.
template <typename T>
std::optional<T> If(uint64_t set, absl::string_view field, T value) {
  return (set & BitOf(field)) != 0 ? std::optional<T>(value) : std::nullopt;
}

QuotaOverride OwnQuota(const JournalImage& image, MadeTenantId id) {
  QuotaOverride own;
  auto found = image.made_tenant_quotas.find(id);
  if (found == image.made_tenant_quotas.end()) return own;
  const journal::MadeTenantQuota& record = found->second;
  for (const gpumem::QuotaKey& key : gpumem::kQuotaKeys) {
    if ((record.set & BitOf(key.field)) != 0) own.set.emplace(key.field);
  }
  for (const gpumem::QuotaKey& key : gpumem::kQuotaKeys) {
    if ((record.clear & BitOf(key.field)) != 0) own.clear.emplace_back(key.field);
  }
  Quota& quota = own.values;
  const Quota none;
  const uint64_t set = record.set;
  quota.limit_bytes = If(set, "limit_bytes", record.limit_bytes);
  quota.total_limit_bytes = If(set, "total_limit_bytes", record.total_limit_bytes);
  quota.pinned_limit_bytes = If(set, "pinned_limit_bytes", record.pinned_limit_bytes);
  quota.tier_limit_bytes = If(set, "tier_limit_bytes", record.tier_limit_bytes);
  quota.max_retained_bytes = If(set, "max_retained_bytes", record.max_retained_bytes);
  quota.guarantee_bytes = If(set, "guarantee_bytes", record.guarantee_bytes);
  quota.max_segments = If(set, "max_segments", record.max_segments);
  quota.max_sessions = If(set, "max_sessions", record.max_sessions);
  quota.max_in_flight = If(set, "max_in_flight", record.max_in_flight);
  quota.max_waiting = If(set, "max_waiting", record.max_waiting);
  quota.max_publications = If(set, "max_publications", record.max_publications);
  quota.priority = If(set, "priority", record.priority).value_or(none.priority);
  if ((set & BitOf("min_residence_ms")) != 0)
    quota.min_residence = absl::Nanoseconds(record.min_residence_ns);
  if ((set & BitOf("idle_suspend_ms")) != 0)
    quota.idle_suspend = absl::Nanoseconds(record.idle_suspend_ns);
  if (const gpumem::KindTraits* kind = gpumem::FindKind(record.kind); kind != nullptr)
    quota.kind = kind->kind;
  quota.scrub = record.scrub;
  quota.revocable = record.revocable;
  quota.swappable = record.swappable;
  quota.release = record.on_exit ? ReleasePolicy::kOnExit : ReleasePolicy::kTrust;
  quota.preload =
      If(set, "preload", record.preload == 0 ? PreloadMode::kAccount : PreloadMode::kBroker);
  for (auto device = image.made_tenant_devices.lower_bound({id, 0});
       device != image.made_tenant_devices.end() && device->first.first == id; ++device) {
    const std::string uuid(device->second.device_uuid.view());
    if (device->second.limit_bytes) quota.device_limits[uuid] = *device->second.limit_bytes;
    if (device->second.guarantee_bytes)
      quota.device_guarantees[uuid] = *device->second.guarantee_bytes;
  }
  return own;
}

}  // namespace

journal::MadeTenant RecordOf(const records::Tenant& tenant) {
  const records::MadeTenant& made = *tenant.made;
  return {.id = made.id,
          .created_ns = absl::ToUnixNanos(made.created),
          .session = made.session,
          .uid_known = made.uid.has_value(),
          .uid = made.uid.value_or(0),
          .ending = made.ending,
          .name = tenant.name,
          .parent = made.parent,
          .owner = made.owner,
          .lasting = made.lasting,
          .user = made.user};
}

journal::MadeTenantQuota QuotaRecordOf(const records::MadeTenant& made) {
  const Quota& quota = made.quota.values;
  return {.id = made.id,
          .set = BitsOf(made.quota.set),
          .clear = BitsOf(made.quota.clear),
          .limit_bytes = quota.limit_bytes.value_or(0),
          .total_limit_bytes = quota.total_limit_bytes.value_or(0),
          .pinned_limit_bytes = quota.pinned_limit_bytes.value_or(0),
          .tier_limit_bytes = quota.tier_limit_bytes.value_or(0),
          .max_retained_bytes = quota.max_retained_bytes.value_or(0),
          .guarantee_bytes = quota.guarantee_bytes.value_or(0),
          .max_segments = quota.max_segments.value_or(0),
          .max_sessions = quota.max_sessions.value_or(0),
          .max_in_flight = quota.max_in_flight.value_or(0),
          .max_waiting = quota.max_waiting.value_or(0),
          .max_publications = quota.max_publications.value_or(0),
          .priority = quota.priority,
          .min_residence_ns = absl::ToInt64Nanoseconds(quota.min_residence),
          .idle_suspend_ns = absl::ToInt64Nanoseconds(quota.idle_suspend),
          .kind = quota.kind ? static_cast<uint8_t>(*quota.kind) : uint8_t{0},
          .scrub = quota.scrub,
          .revocable = quota.revocable,
          .swappable = quota.swappable,
          .on_exit = quota.release == ReleasePolicy::kOnExit,
          .preload = quota.preload == PreloadMode::kBroker};
}

std::optional<journal::MadeTenantDevice> DeviceRecordOf(const records::MadeTenant& made,
                                                        uint32_t index) {
  const std::set<std::string> devices = DevicesOf(made.quota);
  if (index >= devices.size()) return std::nullopt;
  const std::string& uuid = *std::next(devices.begin(), index);
  journal::MadeTenantDevice record{.tenant = made.id, .index = index, .device_uuid = uuid};
  const Quota& quota = made.quota.values;
  if (auto limit = quota.device_limits.find(uuid); limit != quota.device_limits.end())
    record.limit_bytes = limit->second;
  if (auto own = quota.device_guarantees.find(uuid); own != quota.device_guarantees.end())
    record.guarantee_bytes = own->second;
  return record;
}

std::vector<std::string> MadeTenants::Restore(const JournalImage& image) {
  state_.next_made_tenant = image.counters.made_tenant + 1;
  // A parent was made before its members. Those without a made parent come from elsewhere.
  std::vector<Tenant*> restored;
  for (const auto& [id, record] : image.made_tenants) {
    if (!record.parent.empty()) tenants_.Ensure(record.parent.view());
    Tenant& tenant = tenants_.Ensure(record.name.view());
    if (tenant.configured && record.ending) continue;
    MadeTenant made{.id = id,
                    .owner = std::string(record.owner.view()),
                    .session = record.session,
                    .created = absl::FromUnixNanos(record.created_ns),
                    .parent = std::string(record.parent.view()),
                    .quota = OwnQuota(image, id),
                    .ending = record.ending,
                    .lasting = record.lasting};
    made.user = record.user;
    if (record.uid_known) made.uid = record.uid;
    tenant.made = std::move(made);
    if (const Tenant* parent = state_.FindTenant(record.parent.view());
        parent != nullptr && tenant.made->by_session()) {
      tenant.books = parent->books;
    }
    state_.made_by_id.emplace(id, &tenant);
    tenants_.CountMade(tenant, 1);
    if (tenant.made->ending) state_.ended_tenants.insert(tenant.name);
    restored.push_back(&tenant);
  }
  for (Tenant* tenant : restored) {
    tenant->made->without_guarantees = HasGuarantee(tenant->made->quota.values);
    tenants_.ApplyMadeQuota(*tenant);
  }
  return RestoreGuarantees(restored);
}

std::optional<journal::MadeTenantUse> UseRecordOf(const LedgerState& state,
                                                  const records::Tenant& tenant, size_t device) {
  const DeviceUse use = tenant.accounts[device].use();
  if (use.peak == 0) return std::nullopt;
  return journal::MadeTenantUse{.tenant = tenant.made->id,
                                .device_uuid = state.devices[device].uuid,
                                .byte_seconds = ByteSeconds(use.byte_ns),
                                .byte_ns = static_cast<uint32_t>(use.byte_ns % kNanosOfSecond),
                                .at_ns = absl::ToInt64Nanoseconds(use.at),
                                .charged_bytes = use.charged,
                                .peak_bytes = use.peak};
}

void MadeTenants::RestoreUses(const JournalImage& image) {
  for (const auto& [key, record] : image.made_tenant_uses) {
    const auto made = state_.made_by_id.find(record.tenant);
    const absl::StatusOr<size_t> device = state_.FindDevice(record.device_uuid.view());
    if (made == state_.made_by_id.end() || !device.ok()) continue;
    made->second->accounts[*device].GoOnFrom(
        {.byte_ns = absl::uint128(record.byte_seconds) * kNanosOfSecond + record.byte_ns,
         .at = absl::Nanoseconds(record.at_ns),
         .charged = record.charged_bytes,
         .peak = record.peak_bytes});
  }
}

std::vector<std::string> MadeTenants::RestoreGuarantees(const std::vector<Tenant*>& restored) {
  std::vector<std::string> given_up;
  for (Tenant* tenant : restored) {
    if (!std::exchange(tenant->made->without_guarantees, false)) continue;
    const Quota quota = tenants_.MadeQuotaOf(*tenant);
    // That of the configuration counts, or of an override.
    if (tenant->configured || HaveSameGuarantees(quota, tenant->quota)) continue;
    if (tenants_.CheckQuotaInBrief(tenant->name, quota).ok()) {
      tenants_.ApplyMadeQuota(*tenant);
      continue;
    }
    tenant->made->without_guarantees = true;
    given_up.push_back(absl::StrCat("the guarantees of tenant \"", tenant->name,
                                    "\", which was made at run time, do not fit beside those of "
                                    "the configuration, and are not in force"));
  }
  return given_up;
}

void MadeTenants::EndOrphans() {
  std::vector<std::string> names;
  for (const auto& [id, tenant] : state_.made_by_id) names.push_back(tenant->name);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    Tenant* tenant = state_.FindTenant(name);
    if (tenant == nullptr || !tenant->made) continue;
    if (tenant->made->ending) {
      tenants_.ForgetIfIdle(*tenant);
      continue;
    }
    if (!tenant->made->by_session() || tenant->made->lasting) continue;
    auto maker = state_.sessions.find(tenant->made->session);
    if (maker == state_.sessions.end() || !maker->second->live) {
      EndTree(*tenant,
              {.session = tenant->made->session, .why = "the session that made it has ended"});
    } else {
      maker->second->made_tenants.insert(name);
    }
  }
}

}  // namespace gpumemd
