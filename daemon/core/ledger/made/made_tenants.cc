// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/made/made_tenants.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/admission/refusals.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/quota/guarantees.h"
#include "daemon/core/quota/quota_changes.h"

namespace gpumemd {
namespace {

constexpr char kChild = ':';

bool IsWord(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
}

absl::Status CheckName(absl::string_view name, size_t most) {
  if (IsWord(name) && name.size() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the name of a tenant has letters, digits, '.', '_' and '-', here at most ", most));
}

absl::Status CheckOwner(absl::string_view owner) {
  const bool right = owner.size() <= kMaxOwnerTag &&
                     std::all_of(owner.begin(), owner.end(),
                                 [](unsigned char c) { return absl::ascii_isprint(c); });
  if (right) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the owner of a tenant is at most ", kMaxOwnerTag, " printable characters"));
}

// The changes of an empty request are none.
absl::Status CheckOwn(const QuotaOverride& own) {
  return own.set.empty() && own.clear.empty() ? absl::OkStatus() : CheckChange(own);
}

// True if both ask for the same. A restart does not keep the order in which fields are cleared.
bool AreSame(const QuotaOverride& one, const QuotaOverride& other) {
  const auto cleared = [](const QuotaOverride& own) {
    return std::set<std::string>(own.clear.begin(), own.clear.end());
  };
  return one.set == other.set && one.values == other.values && cleared(one) == cleared(other);
}

// What a session may not ask for.
absl::Status CheckOfSession(const QuotaOverride& own, const Quota& parent) {
  for (const char* field : {"guarantee_bytes", "guarantees", "max_in_flight"}) {
    if (!own.set.contains(field)) continue;
    return absl::PermissionDeniedError(
        absl::StrCat("a tenant that a session makes has no ", field,
                     ": that of the tenant above it counts; leave it out"));
  }
  if (own.set.contains("priority") && own.values.priority > parent.priority) {
    return absl::PermissionDeniedError(
        absl::StrCat("the priority of the new tenant, ", own.values.priority,
                     ", is above that of its parent, ", parent.priority, "; lower it"));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsNameOfChild(absl::string_view tenant) { return absl::StrContains(tenant, kChild); }

std::set<std::string> DevicesOf(const QuotaOverride& own) {
  std::set<std::string> uuids;
  for (const auto* by_device : {&own.values.device_limits, &own.values.device_guarantees}) {
    for (const auto& [uuid, bytes] : *by_device) uuids.insert(uuid);
  }
  return uuids;
}

absl::StatusOr<records::Tenant*> MadeTenants::FindMade(
    absl::string_view name, const std::optional<std::string>& owner) const {
  Tenant* tenant = state_.FindTenant(name);
  if (tenant == nullptr || !tenant->made) {
    return absl::NotFoundError(
        absl::StrCat("no tenant \"", name, "\" was made at run time, or it has ended"));
  }
  if (owner && *owner != tenant->made->owner) {
    return absl::PermissionDeniedError(absl::StrCat("the owner of tenant \"", name, "\" is \"",
                                                    tenant->made->owner, "\", not \"", *owner,
                                                    "\""));
  }
  return tenant;
}

absl::Status MadeTenants::CheckLevels(const Tenant& parent) const {
  size_t levels = 1;
  for (const Tenant* each = &parent; each != nullptr; each = each->parent) ++levels;
  if (levels <= kMaxTenantLevels) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the new tenant would be on level ", levels,
                                                    " (there are at most ", kMaxTenantLevels, ")"));
}

absl::StatusOr<Quota> MadeTenants::Check(absl::string_view name, const MadeTenant& made,
                                         const QuotaOverride& asked) const {
  Quota named;
  Apply(asked, &named);
  if (absl::Status known = tenants_.CheckDevices(named); !known.ok()) return known;
  Quota quota = tenants_.QuotaOf(made);
  if (absl::Status right = Tenants::CheckKind(quota); !right.ok()) return right;
  if (made.by_session()) {
    absl::Status fits = CheckUnderOverride(name, made, quota);
    if (!fits.ok()) return fits;
    return quota;
  }
  const Tenant* parent = quota.parent.empty() ? nullptr : state_.FindTenant(quota.parent);
  if (absl::Status fits = tenants_.CheckQuota(name, quota, parent); !fits.ok()) return fits;
  return quota;
}

absl::Status MadeTenants::CheckUnderOverride(absl::string_view name, const MadeTenant& made,
                                             Quota quota) const {
  const Tenant* there = state_.FindTenant(name);
  if (there == nullptr || !there->overridden) return absl::OkStatus();
  Apply(*there->overridden, &quota);
  return HasGuarantee(quota)
             ? tenants_.CheckQuotaInBrief(name, quota, state_.FindTenant(made.parent))
             : Tenants::CheckKind(quota);
}

records::Tenant& MadeTenants::Make(absl::string_view name, MadeTenant made,
                                   absl::Span<const AuditOperator> by) {
  Tenant& tenant = tenants_.Ensure(name);
  made.id = MadeTenantId{state_.next_made_tenant++};
  made.created = state_.now();
  tenant.made = std::move(made);
  if (const Tenant* parent = state_.FindTenant(tenant.made->parent);
      parent != nullptr && tenant.made->by_session()) {
    tenant.books = parent->books;
  }
  state_.made_by_id.emplace(tenant.made->id, &tenant);
  tenants_.CountMade(tenant, 1);
  changes_.TouchMade(tenant.made->id, DevicesOf(tenant.made->quota).size());
  tenants_.ApplyMadeQuota(tenant);
  std::vector<std::string> changes = QuotaChanges(Quota(), tenant.made->quota.values);
  if (!tenant.made->owner.empty()) {
    changes.insert(changes.begin(), absl::StrCat("owner: none -> ", tenant.made->owner));
  }
  if (tenant.made->lasting) changes.insert(changes.begin(), "lasting: false -> true");
  auditor_.TenantChanged(AuditEvent::kTenantMade, tenant, tenant.made->session, by,
                         std::move(changes));
  return tenant;
}

absl::StatusOr<bool> MadeTenants::Create(const MadeTenantSpec& spec) {
  if (absl::Status right = CheckName(spec.tenant, kMaxTenantName); !right.ok()) return right;
  if (absl::Status right = CheckOwner(spec.owner); !right.ok()) return right;
  if (absl::Status right = CheckOwn(spec.quota); !right.ok()) return right;
  MadeTenant made{
      .owner = spec.owner, .user = spec.user, .parent = spec.parent, .quota = spec.quota};
  if (spec.by.size() == 1) made.uid = spec.by.front().uid;
  const Tenant* there = state_.FindTenant(spec.tenant);
  if (there != nullptr && there->configured) {
    return absl::AlreadyExistsError(
        absl::StrCat("tenant \"", spec.tenant, "\" is in the configuration"));
  }
  if (there != nullptr && there->made) {
    const MadeTenant& old = *there->made;
    if (!old.ending && !old.by_session() && old.owner == made.owner && old.parent == made.parent &&
        AreSame(old.quota, made.quota) && (!old.user || !made.user || old.user == made.user)) {
      return false;
    }
    return absl::AlreadyExistsError(
        absl::StrCat("tenant \"", spec.tenant, "\" ",
                     old.ending ? "has ended, and its last sessions and memory are not gone yet"
                                : absl::StrCat("was made already, with another owner (\"",
                                               old.owner, "\"), parent or quota")));
  }
  if (!spec.parent.empty()) {
    const Tenant* parent = state_.FindTenant(spec.parent);
    const bool fits =
        parent != nullptr && (parent->configured || (parent->made && !parent->made->by_session()));
    if (!fits) {
      return absl::NotFoundError(absl::StrCat("no tenant \"", spec.parent,
                                              "\" is configured, or was made by an operator"));
    }
    if (absl::Status goes_on = state_.CheckGoesOn(*parent); !goes_on.ok()) return goes_on;
    if (there != nullptr && state_.IsUnder(*parent, *there)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tenant \"", spec.parent, "\" is under \"", spec.tenant, "\""));
    }
    if (absl::Status room = CheckLevels(*parent); !room.ok()) return room;
  }
  if (absl::StatusOr<Quota> quota = Check(spec.tenant, made, spec.quota); !quota.ok()) {
    return quota.status();
  }
  if (state_.made_tenants >= state_.bounds.max_made_tenants) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the daemon has ", state_.made_tenants,
                     " tenants that were made at run time, the most that it may; end some"));
  }
  Make(spec.tenant, std::move(made), spec.by);
  return true;
}

absl::Status MadeTenants::Change(Tenant& tenant, const QuotaOverride& change, SessionId session,
                                 absl::Span<const AuditOperator> by) {
  if (absl::Status right = CheckChange(change); !right.ok()) return right;
  if (absl::Status goes_on = state_.CheckGoesOn(tenant); !goes_on.ok()) return goes_on;
  MadeTenant& made = *tenant.made;
  MadeTenant changed = made;
  Merge(change, &changed.quota);
  changed.without_guarantees = false;
  if (absl::StatusOr<Quota> quota = Check(tenant.name, changed, change); !quota.ok()) {
    return quota.status();
  }
  changes_.TouchMade(made.id,
                     std::max(DevicesOf(made.quota).size(), DevicesOf(changed.quota).size()));
  std::vector<std::string> changes = QuotaChanges(made.quota.values, changed.quota.values);
  made = std::move(changed);
  tenants_.ApplyMadeQuota(tenant);
  auditor_.TenantChanged(AuditEvent::kTenantChanged, tenant, session, by, std::move(changes));
  return absl::OkStatus();
}

absl::Status MadeTenants::Update(absl::string_view name, const std::optional<std::string>& owner,
                                 const QuotaOverride& change, absl::Span<const AuditOperator> by) {
  absl::StatusOr<Tenant*> tenant = FindMade(name, owner);
  if (!tenant.ok()) return tenant.status();
  if ((*tenant)->made->by_session() && (*tenant)->parent != nullptr) {
    absl::Status may = CheckOfSession(change, (*tenant)->parent->quota);
    if (!may.ok()) return may;
  }
  return Change(**tenant, change, SessionId{}, by);
}

absl::Status MadeTenants::End(absl::string_view name, const std::optional<std::string>& owner,
                              absl::Span<const AuditOperator> by) {
  absl::StatusOr<Tenant*> tenant = FindMade(name, owner);
  if (!tenant.ok()) return tenant.status();
  EndTree(**tenant, {.by = by, .why = "an operator ended it"});
  return absl::OkStatus();
}

void MadeTenants::EndTree(Tenant& tenant, const Cause& cause) {
  std::vector<Tenant*> members;
  for (const auto& [name, member] : tenant.children) {
    if (member->made && !member->made->ending) members.push_back(member);
  }
  // One that is forgotten keeps `tenant`, which has not ended yet.
  for (Tenant* member : members) EndTree(*member, cause);
  if (!tenant.made->ending) {
    auditor_.TenantChanged(AuditEvent::kTenantEnded, tenant, cause.session, cause.by, {},
                           cause.why);
  }
  if (tenant.configured) return tenants_.DropMade(tenant);
  if (auto maker = state_.sessions.find(tenant.made->session); maker != state_.sessions.end()) {
    maker->second->made_tenants.erase(tenant.name);
  }
  if (std::exchange(tenant.made->ending, true)) return;
  changes_.TouchMade(tenant.made->id, 0);
  state_.queue_stale = true;
  state_.ended_tenants.insert(tenant.name);
  segments_.DoomAllRetained(tenant);
  tenants_.ApplyMadeQuota(tenant);  // without guarantees
  tenants_.ForgetIfIdle(tenant);
}

// --- Sessions --------------------------------------------------------------------------

absl::StatusOr<std::string> MadeTenants::CreateChild(SessionId id, absl::string_view name,
                                                     const QuotaOverride& own, bool lasting) {
  absl::StatusOr<Session*> session = state_.LiveSession(id);
  if (!session.ok()) return session.status();
  Tenant& parent = *(*session)->tenant;
  const uid_t uid = (*session)->details.peer.uid;
  std::string prefix = absl::StrCat(parent.name, std::string(1, kChild));
  if (!parent.made || !parent.made->by_session()) absl::StrAppend(&prefix, uid, ".");
  if (lasting && name.empty()) return absl::InvalidArgumentError("a lasting tenant needs a name");
  // No later one has the number.
  const std::string chosen =
      name.empty() ? absl::StrCat("t", state_.next_made_tenant) : std::string(name);
  const size_t most = kMaxTenantName - std::min(prefix.size(), kMaxTenantName);
  if (absl::Status right = CheckName(chosen, most); !right.ok()) return right;
  if (absl::Status right = CheckOwn(own); !right.ok()) return right;
  if (absl::Status may = CheckOfSession(own, parent.quota); !may.ok()) return may;
  const std::string whole = absl::StrCat(prefix, chosen);
  MadeTenant made{
      .session = id, .uid = uid, .parent = parent.name, .quota = own, .lasting = lasting};
  if (const Tenant* there = state_.FindTenant(whole); there != nullptr && there->made) {
    const MadeTenant& old = *there->made;
    // Its name has the maker's uid.
    if (!old.ending && old.lasting == lasting && (lasting || old.session == id) &&
        AreSame(old.quota, own)) {
      return whole;
    }
    return absl::AlreadyExistsError(
        absl::StrCat("tenant \"", whole, "\" ",
                     old.ending ? "has ended, and its last sessions and memory are not gone yet"
                                : "was made already, by another session, with another quota, or "
                                  "to last longer or shorter"));
  }
  if (absl::Status goes_on = state_.CheckGoesOn(parent); !goes_on.ok()) return goes_on;
  if (absl::Status room = CheckLevels(parent); !room.ok()) return room;
  if (absl::StatusOr<Quota> quota = Check(whole, made, own); !quota.ok()) return quota.status();
  if (absl::Status few = CheckCounts(parent, uid, lasting); !few.ok()) return few;
  Make(whole, std::move(made), {});
  if (!lasting) (*session)->made_tenants.insert(whole);
  return whole;
}

absl::StatusOr<records::Tenant*> MadeTenants::FindChildOf(SessionId id,
                                                          absl::string_view name) const {
  absl::StatusOr<Session*> session = state_.LiveSession(id);
  if (!session.ok()) return session.status();
  Tenant* tenant = state_.FindTenant(name);
  const bool own = tenant != nullptr && tenant->made && tenant->made->by_session() &&
                   tenant->made->uid == (*session)->details.peer.uid &&
                   (tenant->made->session == id || tenant->parent == (*session)->tenant);
  if (own) return tenant;
  // The same for tenants of others, which the session need not know of.
  return absl::NotFoundError(
      absl::StrCat("no tenant \"", name,
                   "\" was made under this session's tenant by its user, or it has ended"));
}

absl::Status MadeTenants::UpdateChild(SessionId id, absl::string_view name,
                                      const QuotaOverride& change) {
  absl::StatusOr<Tenant*> tenant = FindChildOf(id, name);
  if (!tenant.ok()) return tenant.status();
  absl::Status may = CheckOfSession(change, (*tenant)->parent->quota);
  return may.ok() ? Change(**tenant, change, id, {}) : may;
}

absl::Status MadeTenants::EndChild(SessionId id, absl::string_view name) {
  absl::StatusOr<Tenant*> tenant = FindChildOf(id, name);
  if (!tenant.ok()) return tenant.status();
  EndTree(**tenant, {.session = id, .why = "a session of its user ended it"});
  return absl::OkStatus();
}

}  // namespace gpumemd
