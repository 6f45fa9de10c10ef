// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/made/made_tenants.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/reclaim.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/model/tenants.h"
#include "daemon/core/quota/overrides.h"

namespace gpumemd::model {

using absl::StatusCode;

namespace {

bool BySession(const Made& made) { return made.session != SessionId{}; }

// Only what the steps set, or what parents of the steps have.
Quota QuotaFor(const LedgerModel& model, const Made& made) {
  Quota quota;
  if (!BySession(made)) {
    if (made.parent.empty()) quota = model.defaults;
    Apply(made.own, &quota);
    if (!made.parent.empty()) quota.parent = made.parent;
    if (made.ending || made.without_guarantees) {
      quota.guarantee_bytes.reset();
      quota.device_guarantees.clear();
    }
    return quota;
  }
  const Quota& parent = QuotaOf(model, made.parent);
  quota.priority = parent.priority;
  Apply(made.own, &quota);
  quota.parent = made.parent;
  quota.priority = std::min(quota.priority, parent.priority);
  quota.scrub = quota.scrub || parent.scrub;
  quota.revocable = quota.revocable || parent.revocable;
  if (!quota.kind) quota.kind = parent.kind;
  if (parent.release == ReleasePolicy::kOnExit) quota.release = parent.release;
  if (parent.max_retained_bytes) {
    quota.max_retained_bytes =
        std::min(quota.max_retained_bytes.value_or(UINT64_MAX), *parent.max_retained_bytes);
  }
  for (const auto& [uuid, bytes] : parent.device_max_retained) {
    quota.device_max_retained[uuid] =
        std::min(bytes, quota.max_retained_bytes.value_or(UINT64_MAX));
  }
  return quota;
}

// The same, with the tenant's override on top.
Quota QuotaFor(const LedgerModel& model, const std::string& name) {
  const Tenant& tenant = model.tenants.at(name);
  Quota quota = QuotaFor(model, *tenant.made);
  if (tenant.overridden) Apply(*tenant.overridden, &quota);
  return quota;
}

std::vector<std::string> MembersOf(const LedgerModel& model, const std::string& name) {
  std::vector<std::string> members;
  for (const auto& [other, tenant] : model.tenants) {
    if (tenant.parent == name) members.push_back(other);
  }
  return members;
}

StatusCode CodeFor(const LedgerModel& model, const std::string& name, const Made& made,
                   const QuotaOverride& asked) {
  Quota named;
  Apply(asked, &named);
  for (const auto& [uuid, bytes] : named.device_limits) {
    if (uuid != "A" && uuid != "B") return StatusCode::kNotFound;
  }
  Quota quota = QuotaFor(model, made);
  if (quota.revocable && quota.kind == Kind::kMempool) return StatusCode::kInvalidArgument;
  // Only the devices that were asked for must be right, not those of the defaults.
  const auto code = [&](Quota fits, const std::string& parent) {
    fits.device_limits.erase("P");
    fits.device_guarantees.erase("P");
    return CodeForQuota(model, name, fits, parent);
  };
  if (!BySession(made)) {
    return code(quota, model.tenants.contains(quota.parent) ? quota.parent : "");
  }
  const auto there = model.tenants.find(name);
  if (there == model.tenants.end() || !there->second.overridden) return StatusCode::kOk;
  Apply(*there->second.overridden, &quota);
  if (quota.revocable && quota.kind == Kind::kMempool) return StatusCode::kInvalidArgument;
  const bool promises = quota.guarantee_bytes || !quota.device_guarantees.empty();
  return promises ? code(quota, made.parent) : StatusCode::kOk;
}

void Make(LedgerModel& model, const std::string& name, Made made) {
  if (!model.tenants.contains(name)) {
    model.tenants[name] = {.quota = model.defaults,
                           .peaks = std::vector<uint64_t>(model.devices.size())};
  }
  model.tenants.at(name).made = std::move(made);
  ApplyWithMembers(model, name, QuotaFor(model, name));
}

void EndTree(LedgerModel& model, const std::string& name) {
  for (const std::string& member : MembersOf(model, name)) {
    Tenant& tenant = model.tenants.at(member);
    if (tenant.made && !tenant.made->ending) EndTree(model, member);
  }
  Tenant& tenant = model.tenants.at(name);
  if (tenant.made->ending) return;
  tenant.made->ending = true;
  model.queue_changed = true;
  GiveUpAllOf(model, name);
  ApplyWithMembers(model, name, QuotaFor(model, name));
}

StatusCode ChildMayHave(const Made& made, const QuotaOverride& own, const Quota& parent) {
  if (!BySession(made)) return StatusCode::kOk;
  if (own.set.contains("guarantee_bytes")) return StatusCode::kPermissionDenied;
  return own.set.contains("priority") && own.values.priority > parent.priority
             ? StatusCode::kPermissionDenied
             : StatusCode::kOk;
}

// Returns the code with which a call about a made tenant is refused, or OK.
StatusCode CodeToFind(const LedgerModel& model, std::optional<SessionId> session,
                      const std::string& name, const std::optional<std::string>& owner) {
  const auto found = model.tenants.find(name);
  if (session && !Live(model, *session)) return StatusCode::kAborted;
  if (found == model.tenants.end() || !found->second.made) return StatusCode::kNotFound;
  const Made& made = *found->second.made;
  if (session) {
    // All processes are of one user.
    const bool own =
        BySession(made) &&
        (made.session == *session || found->second.parent == model.sessions.at(*session).tenant);
    return own ? StatusCode::kOk : StatusCode::kNotFound;
  }
  return owner && *owner != made.owner ? StatusCode::kPermissionDenied : StatusCode::kOk;
}

}  // namespace

std::string BooksOf(const LedgerModel& model, const std::string& tenant) {
  const Tenant* each = &model.tenants.at(tenant);
  std::string name = tenant;
  while (each->made && BySession(*each->made)) {
    name = each->made->parent;
    each = &model.tenants.at(name);
  }
  return name;
}

void ComputeMadeQuotas(LedgerModel& model) {
  for (size_t level = 0; level <= kMaxTenantLevels; ++level) {
    for (auto& [name, tenant] : model.tenants) {
      if (tenant.made && !tenant.configured) tenant.quota = QuotaFor(model, name);
    }
  }
}

void ApplyWithMembers(LedgerModel& model, const std::string& name, const Quota& quota) {
  ApplyQuota(model, name, quota);
  for (const std::string& member : MembersOf(model, name)) {
    const std::optional<Made>& made = model.tenants.at(member).made;
    if (made && BySession(*made)) ApplyWithMembers(model, member, QuotaFor(model, member));
  }
}

absl::Status Create(LedgerModel& model, const MadeTenantSpec& spec,
                    const absl::StatusOr<bool>& answer) {
  const auto refused = [&](StatusCode code) { return ExpectCode(answer.status(), code); };
  const Made made{.owner = spec.owner, .parent = spec.parent, .own = spec.quota};
  if (auto there = model.tenants.find(spec.tenant); there != model.tenants.end()) {
    if (there->second.configured) return refused(StatusCode::kAlreadyExists);
    if (const std::optional<Made>& old = there->second.made) {
      const bool same = !old->ending && old->owner == made.owner && old->parent == made.parent &&
                        old->own == made.own;
      if (!same) return refused(StatusCode::kAlreadyExists);
      return answer.ok() && !*answer ? absl::OkStatus() : Wrong("expected the same tenant again");
    }
  }
  if (!spec.parent.empty()) {
    auto parent = model.tenants.find(spec.parent);
    if (parent == model.tenants.end() ||
        !(parent->second.configured || (parent->second.made && !BySession(*parent->second.made)))) {
      return refused(StatusCode::kNotFound);
    }
    if (HasEnded(model, spec.parent)) return refused(StatusCode::kFailedPrecondition);
    if (model.tenants.contains(spec.tenant) && IsUnder(model, spec.parent, spec.tenant)) {
      return refused(StatusCode::kInvalidArgument);
    }
    if (PathOf(model, spec.parent).size() + 1 > kMaxTenantLevels) {
      return refused(StatusCode::kFailedPrecondition);
    }
  }
  const StatusCode code = CodeFor(model, spec.tenant, made, spec.quota);
  if (code != StatusCode::kOk) return refused(code);
  if (!answer.ok() || !*answer) return Wrong("expected a new tenant");
  Make(model, spec.tenant, made);
  return absl::OkStatus();
}

absl::Status CreateChild(LedgerModel& model, SessionId id, const std::string& name,
                         const QuotaOverride& own, bool lasting,
                         const absl::StatusOr<std::string>& answer) {
  const auto refused = [&](StatusCode code) { return ExpectCode(answer.status(), code); };
  if (!Live(model, id)) return refused(StatusCode::kAborted);
  const std::string parent = model.sessions.at(id).tenant;
  const bool inner = absl::StrContains(parent, ":");
  const std::string whole = absl::StrCat(parent, inner ? ":" : ":0.", name);
  if (whole.size() > kMaxTenantName) return refused(StatusCode::kInvalidArgument);
  const Made made{.session = id, .parent = parent, .own = own, .lasting = lasting};
  if (StatusCode may = ChildMayHave(made, own, QuotaOf(model, parent)); may != StatusCode::kOk) {
    return refused(may);
  }
  if (auto there = model.tenants.find(whole); there != model.tenants.end() && there->second.made) {
    const Made& old = *there->second.made;
    if (old.ending || old.lasting != lasting || (!lasting && old.session != id) || old.own != own) {
      return refused(StatusCode::kAlreadyExists);
    }
    return answer.ok() && *answer == whole ? absl::OkStatus() : Wrong("expected ", whole, " again");
  }
  if (HasEnded(model, parent) || PathOf(model, parent).size() + 1 > kMaxTenantLevels) {
    return refused(StatusCode::kFailedPrecondition);
  }
  if (StatusCode code = CodeFor(model, whole, made, own); code != StatusCode::kOk) {
    return refused(code);
  }
  uint64_t used = 0, used_lasting = 0;  // all processes are of one user
  for (const auto& [other, tenant] : model.tenants) {
    if (!tenant.made || !BySession(*tenant.made)) continue;
    ++used;
    if (tenant.made->lasting) ++used_lasting;
  }
  const auto deny = [&](uint64_t has, uint64_t most) {
    return ExpectDenial(model, answer.status(), parent,
                        {{Denial::Cause::kDaemonLimit, "", kEverywhere}, 1, has, most});
  };
  if (used >= model.bounds.max_made_per_uid) return deny(used, model.bounds.max_made_per_uid);
  if (lasting && used_lasting >= model.bounds.max_lasting_per_uid) {
    return deny(used_lasting, model.bounds.max_lasting_per_uid);
  }
  if (!answer.ok() || *answer != whole) {
    return Wrong("expected tenant ", whole, ", got ", answer.status().ToString());
  }
  Make(model, whole, made);
  return absl::OkStatus();
}

absl::Status UpdateMade(LedgerModel& model, std::optional<SessionId> session,
                        const std::string& name, const std::optional<std::string>& owner,
                        const QuotaOverride& change, const absl::Status& answer) {
  StatusCode code = CodeToFind(model, session, name, owner);
  if (code != StatusCode::kOk) return ExpectCode(answer, code);
  Tenant& tenant = model.tenants.at(name);
  if (!tenant.parent.empty()) {
    code = ChildMayHave(*tenant.made, change, QuotaOf(model, tenant.parent));
    if (code != StatusCode::kOk) return ExpectCode(answer, code);
  }
  if (change.set.empty() && change.clear.empty()) {
    return ExpectCode(answer, StatusCode::kInvalidArgument);
  }
  if (tenant.made->ending) return ExpectCode(answer, StatusCode::kFailedPrecondition);
  Made changed = *tenant.made;
  Merge(change, &changed.own);
  changed.without_guarantees = false;
  code = CodeFor(model, name, changed, change);
  if (code != StatusCode::kOk) return ExpectCode(answer, code);
  tenant.made = changed;
  if (!tenant.configured) ApplyWithMembers(model, name, QuotaFor(model, name));
  return ExpectCode(answer, StatusCode::kOk);
}

absl::Status EndMade(LedgerModel& model, std::optional<SessionId> session, const std::string& name,
                     const std::optional<std::string>& owner, const absl::Status& answer) {
  const StatusCode code = CodeToFind(model, session, name, owner);
  if (code == StatusCode::kOk) {
    EndTree(model, name);
    Sweep(model);
  }
  return ExpectCode(answer, code);
}

void EndMadeOf(LedgerModel& model, SessionId session) {
  for (const std::string& name : TenantNames(model)) {
    auto tenant = model.tenants.find(name);
    if (tenant == model.tenants.end() || !tenant->second.made) continue;
    const Made& made = *tenant->second.made;
    if (made.session == session && !made.lasting) EndTree(model, name);
  }
}

size_t KeepOverridesAlone(LedgerModel& model, absl::FunctionRef<bool(const std::string&)> unused) {
  size_t kept = 0;
  for (const std::string& name : TenantNames(model)) {
    Tenant& tenant = model.tenants.at(name);
    if (!tenant.overridden || !tenant.made || !tenant.made->ending || !unused(name)) continue;
    tenant.made.reset();
    tenant.peaks.assign(model.devices.size(), 0);
    tenant.metered.clear();
    Quota quota = model.defaults;
    Apply(*tenant.overridden, &quota);
    ApplyQuota(model, name, quota);
    ++kept;
  }
  return kept;
}

absl::Status GiveUpGuarantees(LedgerModel& model, const std::vector<std::string>& told) {
  for (const std::string& name : TenantNames(model)) {  // no daemon remembers it
    std::optional<Made>& made = model.tenants.at(name).made;
    if (!made || !std::exchange(made->without_guarantees, false)) continue;
    if (!model.tenants.at(name).configured) ApplyWithMembers(model, name, QuotaFor(model, name));
  }
  for (const std::string& sentence : told) {
    bool known = false;
    for (const std::string& name : TenantNames(model)) {
      Tenant& tenant = model.tenants.at(name);
      if (!absl::StrContains(sentence, absl::StrCat("\"", name, "\""))) continue;
      known = tenant.made && !BySession(*tenant.made) &&
              tenant.made->own.values.guarantee_bytes.has_value() &&
              CodeForQuota(model, name, tenant.quota) != StatusCode::kOk;
      if (!known) break;
      tenant.made->without_guarantees = true;
      ApplyWithMembers(model, name, QuotaFor(model, name));
    }
    if (!known) return Wrong("guarantees that could be kept were given up: ", sentence);
  }
  return absl::OkStatus();
}

void EndOrphans(LedgerModel& model) {
  for (const std::string& name : TenantNames(model)) {
    const std::optional<Made>& made = model.tenants.at(name).made;
    if (made && BySession(*made) && !made->lasting && !Live(model, made->session)) {
      EndTree(model, name);
    }
  }
}

}  // namespace gpumemd::model
