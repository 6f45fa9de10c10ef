// SPDX-License-Identifier: Apache-2.0
// The quotas of tenants that were made at run time, and how such a tenant becomes another.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/admission/refusals.h"
#include "daemon/core/ledger/made/made_tenants.h"
#include "daemon/core/ledger/tenants.h"
#include "daemon/core/quota/guarantees.h"
#include "daemon/core/quota/overrides.h"

namespace gpumemd {
namespace {

// Lowers `own` to `most`, if that is set.
template <typename T>
void LowerTo(const std::optional<T>& most, std::optional<T>& own) {
  if (most && (!own || *own > *most)) own = most;
}

// Makes the quota of a tenant under `parent` require all that the parent's quota requires of
// sessions and memory one by one. What it limits in sum also counts the tenants under it.
void Inherit(const Quota& parent, Quota& quota) {
  quota.priority = std::min(quota.priority, parent.priority);
  quota.scrub |= parent.scrub;
  quota.revocable |= parent.revocable;
  quota.swappable |= parent.swappable;
  quota.min_residence = std::min(quota.min_residence, parent.min_residence);
  if (parent.idle_suspend != absl::ZeroDuration() &&
      (quota.idle_suspend == absl::ZeroDuration() || quota.idle_suspend > parent.idle_suspend)) {
    quota.idle_suspend = parent.idle_suspend;
  }
  if (parent.release == ReleasePolicy::kOnExit) quota.release = ReleasePolicy::kOnExit;
  if (!quota.kind) quota.kind = parent.kind;
  LowerTo(parent.max_retained_bytes, quota.max_retained_bytes);
  for (const auto& [uuid, bytes] : parent.device_max_retained) {
    auto [own, is_new] = quota.device_max_retained.emplace(
        uuid, std::min(bytes, quota.max_retained_bytes.value_or(bytes)));
    if (!is_new) own->second = std::min(own->second, bytes);
  }
  quota.guarantee_bytes.reset();
  quota.device_guarantees.clear();
}

}  // namespace

Quota Tenants::QuotaOf(const records::MadeTenant& made, const Quota& defaults) {
  Quota quota;
  if (made.parent.empty()) quota = defaults;
  Apply(made.quota, &quota);
  if (!made.parent.empty()) quota.parent = made.parent;
  if (made.without_guarantees || made.ending) {
    quota.guarantee_bytes.reset();
    quota.device_guarantees.clear();
  }
  return quota;
}

Quota Tenants::QuotaOf(const records::MadeTenant& made) const {
  Quota quota;
  if (!made.by_session()) return QuotaOf(made, state_.default_quota);
  const Tenant* parent = state_.FindTenant(made.parent);
  if (parent != nullptr) {  // unless it sets them
    quota.priority = parent->quota.priority;
    quota.min_residence = parent->quota.min_residence;
  }
  Apply(made.quota, &quota);
  quota.parent = made.parent;
  if (parent != nullptr) Inherit(parent->quota, quota);
  return quota;
}

Quota Tenants::MadeQuotaOf(const Tenant& tenant) const {
  Quota quota = QuotaOf(*tenant.made);
  if (tenant.overridden) Apply(*tenant.overridden, &quota);
  return quota;
}

void Tenants::ApplyMadeQuota(Tenant& tenant) {
  if (!tenant.configured) ApplyWithMembers(tenant, MadeQuotaOf(tenant));
}

void Tenants::ComputeMadeQuotas() {
  std::vector<Tenant*> made;
  for (auto& [name, tenant] : state_.tenants) {
    if (tenant->made && !tenant->configured) made.push_back(tenant.get());
  }
  // Each round settles one more level.
  bool changed = !made.empty();
  for (size_t level = 0; changed && level <= kMaxTenantLevels; ++level) {
    changed = false;
    for (Tenant* tenant : made) {
      Quota quota = MadeQuotaOf(*tenant);
      if (quota == tenant->quota) continue;
      tenant->quota = std::move(quota);
      changed = true;
    }
  }
}

std::map<std::string, Quota> Tenants::MadeQuotas(const Quota& defaults) const {
  std::map<std::string, Quota> quotas;
  for (const auto& [name, tenant] : state_.tenants) {
    if (!tenant->made) continue;
    const records::MadeTenant& made = *tenant->made;
    Quota quota = made.by_session() ? QuotaOf(made) : QuotaOf(made, defaults);
    quotas.emplace(name, std::move(quota));
  }
  return quotas;
}

absl::Status Tenants::CheckAdmits(absl::string_view name) const {
  const Tenant* tenant = state_.FindTenant(name);
  if (tenant != nullptr) {
    if (absl::Status goes_on = state_.CheckGoesOn(*tenant); !goes_on.ok()) return goes_on;
  }
  const bool made = tenant != nullptr && tenant->made;
  return IsNameOfChild(name) && !made ? TenantEnded(name) : absl::OkStatus();
}

void Tenants::CountMade(Tenant& tenant, int change) {
  for (size_t i = 0; i < state_.devices.size(); ++i) {
    tenant.accounts[i].meter().NoteIn(change > 0 ? &state_.uses_changed : nullptr,
                                      {tenant.made->id, i});
  }
  const auto count = static_cast<uint32_t>(change);
  state_.made_tenants += count;
  if (!tenant.made->by_session()) return;
  state_.made_by_sessions += count;
  const uid_t uid = tenant.made->uid.value_or(0);
  LedgerState::MadeOfUid& of_uid = state_.made_of_uid[uid];
  if (change > 0) {
    of_uid.ids.insert(tenant.made->id);
  } else {
    of_uid.ids.erase(tenant.made->id);
  }
  if (tenant.made->lasting) {
    state_.lasting_tenants += count;
    of_uid.lasting += count;
    tenant.books->lasting += count;
  }
  if (of_uid.ids.empty()) state_.made_of_uid.erase(uid);
}

void Tenants::RememberEnded(const Tenant& tenant) {
  if (tenant.made->by_session()) return;
  EndedTenantView ended{.name = tenant.name,
                        .owner = tenant.made->owner,
                        .user = tenant.made->user,
                        .created = tenant.made->created,
                        .ended = state_.now()};
  records::MadeTenant before = *tenant.made;
  before.ending = false;  // with its guarantees
  const Quota quota = QuotaOf(before);
  for (size_t i = 0; i < state_.devices.size(); ++i) {
    const Account& account = tenant.accounts[i];
    ended.devices.push_back({.device_uuid = state_.devices[i].uuid,
                             .limit = state_.LimitOn(tenant, i),
                             .guarantee = GuaranteeOn(quota, state_.devices[i]),
                             .peak = account.peak(),
                             .byte_seconds = account.byte_seconds()});
  }
  state_.last_ended.Add(std::move(ended));
}

void Tenants::DropMade(Tenant& tenant) {
  CountMade(tenant, -1);
  changes_.TouchMade(tenant.made->id, DevicesOf(tenant.made->quota).size());
  state_.ended_tenants.erase(tenant.name);
  if (auto maker = state_.sessions.find(tenant.made->session); maker != state_.sessions.end()) {
    maker->second->made_tenants.erase(tenant.name);
  }
  state_.made_by_id.erase(tenant.made->id);
  tenant.books = &tenant;
  tenant.made.reset();
}

}  // namespace gpumemd
