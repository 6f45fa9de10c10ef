// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/tenants.h"

#include <memory>
#include <utility>
#include <vector>

#include "daemon/core/admission/trim.h"

namespace gpumemd {

records::Tenant& Tenants::Ensure(absl::string_view name) {
  if (Tenant* found = state_.FindTenant(name)) return *found;
  auto tenant = std::make_unique<Tenant>();
  tenant->name = std::string(name);
  tenant->quota = state_.default_quota;
  tenant->accounts.resize(state_.devices.size());
  tenant->retained.resize(state_.devices.size());
  tenant->retainers.resize(state_.devices.size());
  tenant->pools.resize(state_.devices.size());
  Tenant& ref = *tenant;
  for (size_t d = 0; d < state_.devices.size(); ++d) {
    ref.retained[d].OnChange([this, &ref, d](uint64_t before, uint64_t after) {
      for (Tenant* each = &ref; each != nullptr; each = each->parent) {
        each->retainers[d].Change(&ref, ref.name, before, after);
      }
      state_.retainers[d].Change(&ref, ref.name, before, after);
    });
  }
  state_.versions.Recall(ref);
  state_.tenants.emplace(ref.name, std::move(tenant));
  for (size_t d = 0; d < state_.devices.size(); ++d) {
    ref.accounts[d].meter().SetClock(&state_.usage_clock);
    ref.accounts[d].SetParent(&state_.device_accounts[d]);
  }
  Link(ref);
  return ref;
}

void Tenants::CountWaiting(Tenant& tenant, int change) {
  for (Tenant* each = &tenant; each != nullptr; each = each->parent) {
    each->tree_waiting += static_cast<uint32_t>(change);
  }
}

void Tenants::PutUnder(Tenant& tenant, Tenant* parent) {
  if (tenant.parent == parent) return;
  for (Tenant* above = tenant.parent; above != nullptr; above = above->parent) {
    above->tree_sessions -= tenant.tree_sessions;
    above->tree_waiting -= tenant.tree_waiting;
    above->demoted_bytes -= tenant.demoted_bytes;
    above->tree_publications -= tenant.tree_publications;
    for (size_t d = 0; d < state_.devices.size(); ++d) {
      above->retainers[d].RemoveAll(tenant.retainers[d]);
    }
  }
  if (tenant.parent != nullptr) tenant.parent->children.erase(tenant.name);
  tenant.parent = parent;
  if (parent != nullptr) parent->children.emplace(tenant.name, &tenant);
  for (Tenant* above = parent; above != nullptr; above = above->parent) {
    above->tree_sessions += tenant.tree_sessions;
    above->tree_waiting += tenant.tree_waiting;
    above->demoted_bytes += tenant.demoted_bytes;
    above->tree_publications += tenant.tree_publications;
    for (size_t d = 0; d < state_.devices.size(); ++d) {
      above->retainers[d].AddAll(tenant.retainers[d]);
    }
  }
  for (size_t d = 0; d < state_.devices.size(); ++d) {
    tenant.accounts[d].SetParent(parent == nullptr ? &state_.device_accounts[d]
                                                   : &parent->accounts[d]);
  }
}

void Tenants::Link(Tenant& tenant) {
  // The configuration has no cycles, and only parents that it configures. A made tenant has the
  // parent with which it was made. An override may have been computed before the tenant was made,
  // from a quota without that parent.
  const bool fixed = tenant.made && !tenant.configured && !tenant.made->parent.empty();
  if (fixed) tenant.quota.parent = tenant.made->parent;
  Tenant* parent = tenant.quota.parent.empty() ? nullptr : state_.FindTenant(tenant.quota.parent);
  if (parent != nullptr && (!(parent->configured || fixed) || state_.IsUnder(*parent, tenant)))
    parent = nullptr;
  PutUnder(tenant, parent);
  for (size_t d = 0; d < state_.devices.size(); ++d) {
    const uint64_t guarantee = state_.GuaranteeOn(tenant, d);
    if (tenant.accounts[d].guarantee() == guarantee) continue;
    state_.queue_stale = true;
    tenant.accounts[d].SetGuarantee(guarantee);
  }
}

bool Tenants::IsInUse(const Tenant& tenant) {
  return tenant.sessions > 0 || tenant.awaited > 0 || LedgerState::TotalSegments(tenant) > 0 ||
         !tenant.children.empty();
}

void Tenants::KeepOverrideAlone(Tenant& tenant) {
  Tenant* const parent = tenant.parent;
  Quota quota = state_.default_quota;
  Apply(*tenant.overridden, &quota);
  ApplyQuota(tenant, quota);
  if (parent != nullptr) ForgetIfIdle(*parent);
}

void Tenants::ForgetIfIdle(Tenant& tenant) {
  if (IsInUse(tenant)) return;
  if (tenant.made && tenant.made->ending) {
    RememberEnded(tenant);
    DropMade(tenant);
    // An override may keep it: another of its name begins anew.
    for (Account& account : tenant.accounts) account.ForgetUse();
    if (tenant.overridden) return KeepOverrideAlone(tenant);
  }
  if (tenant.configured || tenant.overridden || tenant.made) return;
  Tenant* const parent = tenant.parent;
  state_.versions.Keep(tenant);
  for (Account& account : tenant.accounts) account.SetGuarantee(0);
  PutUnder(tenant, nullptr);
  for (Account& account : tenant.accounts) account.SetParent(nullptr);
  state_.tenants.erase(std::string(tenant.name));
  if (parent != nullptr) ForgetIfIdle(*parent);
}

void Tenants::RankCharges(const Tenant& tenant) {
  for (const Account& account : tenant.accounts) {
    std::vector<SegmentId> own;
    for (const auto& [rank, bytes] : account.to_revoke().ranked()) {
      if (rank.priority != tenant.quota.priority &&
          state_.segments.at(rank.segment)->tenant == &tenant) {
        own.push_back(rank.segment);
      }
    }
    for (SegmentId id : own) state_.segments.at(id)->charge.Rank();
  }
}

void Tenants::ApplyQuota(Tenant& tenant, const Quota& quota) {
  tenant.quota = quota;
  Link(tenant);
  RankCharges(tenant);
  ++state_.quotas_version;
  state_.queue_stale = true;
  state_.swaps_stale = true;
  // Retained segments above the new limit are doomed at once.
  for (size_t device = 0; device < state_.devices.size(); ++device) {
    while (tenant.retained[device].bytes() > state_.MaxRetainedOn(tenant, device)) {
      segments_.DoomOldest(tenant, device);
    }
    if (quota.scrub) {
      while (segments_.DoomOldest(tenant, device)) {
      }
    }
    TrimForShortfall(state_, segments_, {.tenant = &tenant, .device = device}, 0, {});
  }
}

void Tenants::ApplyWithMembers(Tenant& tenant, const Quota& quota) {
  ApplyQuota(tenant, quota);
  for (const auto& [name, member] : tenant.children) {
    if (member->made && member->made->by_session()) ApplyMadeQuota(*member);
  }
}

void Tenants::Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults,
                        const std::map<std::string, OverriddenQuota>& overridden) {
  state_.default_quota = defaults;
  ++state_.quotas_version;
  state_.queue_stale = true;
  for (const auto& [name, quota] : tenants) {
    Tenant& tenant = Ensure(name);
    tenant.configured = true;
    if (tenant.made && tenant.made->ending) DropMade(tenant);
  }
  for (const auto& [name, quota] : overridden) Ensure(name);
  // In this order: the tenants, the hierarchy, and at the very end usage above the new limits.
  std::vector<Tenant*> unconfigured;
  for (auto& [name, tenant] : state_.tenants) {
    auto it = tenants.find(name);
    tenant->configured = it != tenants.end();
    auto own = overridden.find(name);
    tenant->overridden.reset();
    tenant->quota = tenant->configured ? it->second : defaults;
    if (own != overridden.end()) {
      tenant->overridden = own->second.changes;
      tenant->quota = own->second.quota;
    }
    PutUnder(*tenant, nullptr);
    if (!tenant->configured) unconfigured.push_back(tenant.get());
  }
  ComputeMadeQuotas();
  for (auto& [name, tenant] : state_.tenants) Link(*tenant);
  for (auto& [name, tenant] : state_.tenants) ApplyQuota(*tenant, Quota(tenant->quota));
  // Forgetting one may forget tenants above it. Those have a child, so they are not in this list.
  std::vector<Tenant*> idle;
  for (Tenant* tenant : unconfigured) {
    if (!IsInUse(*tenant)) idle.push_back(tenant);
  }
  for (Tenant* tenant : idle) ForgetIfIdle(*tenant);
}

}  // namespace gpumemd
