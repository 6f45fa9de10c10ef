// Tenants: their quotas, and the hierarchy of tenants.
//
// A tenant may be under another one, as a member is under its team: its usage counts against both.
// A tenant above others is configured, so it exists before they do, and for as long.
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

Ledger::Tenant& Ledger::EnsureTenant(absl::string_view name) {
  if (Tenant* found = state_.FindTenant(name)) return *found;
  auto tenant = std::make_unique<Tenant>();
  tenant->name = std::string(name);
  tenant->quota = state_.default_quota;
  tenant->accounts.resize(state_.devices.size());
  tenant->retained.resize(state_.devices.size());
  tenant->pools.resize(state_.devices.size());
  Tenant& ref = *tenant;
  state_.versions.Recall(ref);
  state_.tenants.emplace(ref.name, std::move(tenant));
  for (size_t d = 0; d < state_.devices.size(); ++d)
    ref.accounts[d].SetParent(&state_.device_accounts[d]);
  Link(ref);
  return ref;
}

void Ledger::CountSession(const Session& session, int change) {
  const uid_t uid = session.details.peer.uid;
  if ((state_.sessions_of_uid[uid] += static_cast<uint32_t>(change)) == 0)
    state_.sessions_of_uid.erase(uid);
  Tenant& tenant = *session.tenant;
  tenant.sessions += static_cast<uint32_t>(change);
  for (Tenant* each = &tenant; each != nullptr; each = each->parent) {
    each->tree_sessions += static_cast<uint32_t>(change);
  }
}

void Ledger::CountWaiting(Tenant& tenant, int change) {
  for (Tenant* each = &tenant; each != nullptr; each = each->parent) {
    each->tree_waiting += static_cast<uint32_t>(change);
  }
}

void Ledger::PutUnder(Tenant& tenant, Tenant* parent) {
  if (tenant.parent == parent) return;
  for (Tenant* above = tenant.parent; above != nullptr; above = above->parent) {
    above->tree_sessions -= tenant.tree_sessions;
    above->tree_waiting -= tenant.tree_waiting;
    above->tree_publications -= tenant.tree_publications;
  }
  if (tenant.parent != nullptr) --tenant.parent->children;
  tenant.parent = parent;
  if (parent != nullptr) ++parent->children;
  for (Tenant* above = parent; above != nullptr; above = above->parent) {
    above->tree_sessions += tenant.tree_sessions;
    above->tree_waiting += tenant.tree_waiting;
    above->tree_publications += tenant.tree_publications;
  }
  for (size_t d = 0; d < state_.devices.size(); ++d) {
    tenant.accounts[d].SetParent(parent == nullptr ? &state_.device_accounts[d]
                                                   : &parent->accounts[d]);
  }
}

void Ledger::Link(Tenant& tenant) {
  Tenant* parent = tenant.quota.parent.empty() ? nullptr : state_.FindTenant(tenant.quota.parent);
  // The configuration has no cycles, and only parents that it configures.
  if (parent != nullptr && (!parent->configured || state_.IsUnder(*parent, tenant)))
    parent = nullptr;
  PutUnder(tenant, parent);
  for (size_t d = 0; d < state_.devices.size(); ++d) {
    const uint64_t guarantee = state_.GuaranteeOn(tenant, d);
    if (tenant.accounts[d].guarantee() == guarantee) continue;
    queue_stale_ = true;
    tenant.accounts[d].SetGuarantee(guarantee);
  }
}

void Ledger::ForgetIfIdle(Tenant& tenant) {
  if (tenant.configured || tenant.quota_set || tenant.sessions > 0 ||
      state_.TotalSegments(tenant) > 0 || tenant.children > 0) {
    return;
  }
  queue_moves_ = true;  // its former guarantee is free for others
  state_.versions.Keep(tenant);
  for (Account& account : tenant.accounts) account.SetGuarantee(0);
  PutUnder(tenant, nullptr);
  for (Account& account : tenant.accounts) account.SetParent(nullptr);
  state_.tenants.erase(std::string(tenant.name));
}

void Ledger::ApplyQuota(Tenant& tenant, const Quota& quota) {
  tenant.quota = quota;
  Link(tenant);
  queue_moves_ = queue_stale_ = true;
  // Retained segments above the new limit are doomed at once.
  for (size_t device = 0; device < state_.devices.size(); ++device) {
    while (tenant.retained[device].bytes() > state_.MaxRetainedOn(tenant, device)) {
      DoomOldest(tenant, device);
    }
    if (quota.scrub) {
      while (DoomOldest(tenant, device)) {
      }
    }
    TrimForShortfall({.tenant = &tenant, .device = device}, 0, {});
  }
}

void Ledger::Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults,
                       const std::map<std::string, Quota>& overridden) {
  state_.default_quota = defaults;
  queue_stale_ = true;
  for (const auto& [name, quota] : tenants) EnsureTenant(name).configured = true;
  for (const auto& [name, quota] : overridden) EnsureTenant(name);
  // In this order: the tenants, the hierarchy, and at the very end usage above the new limits.
  std::vector<Tenant*> unconfigured;
  for (auto& [name, tenant] : state_.tenants) {
    auto it = tenants.find(name);
    tenant->configured = it != tenants.end();
    auto own = overridden.find(name);
    tenant->quota_set = own != overridden.end();
    tenant->quota = tenant->quota_set ? own->second : tenant->configured ? it->second : defaults;
    PutUnder(*tenant, nullptr);
    if (!tenant->configured) unconfigured.push_back(tenant.get());
  }
  for (auto& [name, tenant] : state_.tenants) Link(*tenant);
  for (auto& [name, tenant] : state_.tenants) ApplyQuota(*tenant, Quota(tenant->quota));
  for (Tenant* tenant : unconfigured) ForgetIfIdle(*tenant);
}

void Ledger::SetDraining(bool draining) {
  state_.draining = draining;
  if (!draining) return;
  queue_moves_ = queue_stale_ = true;
  for (auto& [name, tenant] : state_.tenants) DoomAllRetained(*tenant);
  while (!attach_waiters_.empty()) {
    attachable_.push_back(attach_waiters_.begin()->first);
    RemoveAttachWaiter(attachable_.back());
  }
}

}  // namespace gpumemd
