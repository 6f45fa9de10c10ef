// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/broker/quota_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/tenants.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/quota/guarantees.h"

namespace gpumemd {
namespace {

// Returns the tenant's level, 1 without a parent; kMaxTenantLevels + 1 for all that are deeper.
size_t LevelOf(absl::string_view tenant, const std::map<std::string, Quota>& tenants,
               const Quota& defaults) {
  size_t level = 0;
  for (std::string each(tenant); !each.empty() && level <= kMaxTenantLevels; ++level) {
    const auto found = tenants.find(each);
    // One that a rule has made has the default parent.
    each = found == tenants.end() ? defaults.parent : found->second.parent;
  }
  return level;
}

}  // namespace

QuotaControl::QuotaControl(Broker* broker, std::vector<DeviceInfo> devices, Overrides overrides,
                           Save save)
    : broker_(broker),
      devices_(std::move(devices)),
      save_(std::move(save)),
      overrides_(std::move(overrides)) {}

Quota QuotaControl::BaseOf(const std::string& tenant) const {
  if (auto configured = tenants_.find(tenant); configured != tenants_.end())
    return configured->second;
  // Otherwise it has the quota of tenants that rules make.
  return broker_->tenants().MadeQuota(tenant).value_or(defaults_);
}

std::map<std::string, Quota> QuotaControl::WithMade(std::map<std::string, Quota> tenants,
                                                    const Quota& defaults) const {
  tenants.merge(broker_->tenants().MadeQuotas(defaults));  // the configuration's take precedence
  return tenants;
}

absl::Status QuotaControl::CheckMade(const std::map<std::string, Quota>& tenants,
                                     const Quota& defaults) const {
  const std::map<std::string, Quota> all = WithMade(tenants, defaults);
  for (const auto& [tenant, quota] : all) {
    if (tenants.contains(tenant) || LevelOf(tenant, all, defaults) <= kMaxTenantLevels) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("tenant \"", tenant, "\", made at run time, would have ", kMaxTenantLevels,
                     " tenants above it or more (there are at most ", kMaxTenantLevels,
                     " levels); put fewer above it, or end it (gpumemctl tenant end)"));
  }
  const std::optional<GuaranteeProblem> problem = FindGuaranteeProblem(all, devices_);
  if (!problem) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Tell(*problem),
                   "; tenants made at run time keep their guarantees until they end (gpumemctl "
                   "tenant list, gpumemctl tenant end)"));
}

absl::StatusOr<QuotaOverride> QuotaControl::Known(const std::string& tenant) const {
  // Before the check that the tenant exists: the tenant of a skipped override need not, and its
  // override must be removable.
  if (auto saved = overrides_.find(tenant); saved != overrides_.end()) return saved->second;
  if (absl::Status found = broker_->views().GetTenant(tenant).status(); !found.ok()) return found;
  return QuotaOverride();
}

QuotaControl::Layered QuotaControl::Layer(const std::map<std::string, Quota>& tenants,
                                          const Quota& defaults) const {
  Layered layered;
  const std::map<std::string, Quota> bases = WithMade(tenants, defaults);
  std::map<std::string, Quota> quotas = bases;  // with the overrides that are applied so far
  // All are skipped until applied. Each pass replaces the empty reasons.
  for (const auto& [tenant, override] : overrides_) layered.skipped.emplace(tenant, "");
  // An override that lowers a guarantee makes room for one that raises another. So passes repeat
  // until one applies no further override.
  for (bool applied = true; applied;) {
    applied = false;
    for (auto it = layered.skipped.begin(); it != layered.skipped.end();) {
      const std::string& tenant = it->first;
      const auto base = bases.find(tenant);
      Quota quota = base == bases.end() ? defaults : base->second;
      Apply(overrides_.at(tenant), &quota);
      std::map<std::string, Quota> candidate = quotas;
      candidate.insert_or_assign(tenant, quota);
      std::optional<GuaranteeProblem> problem = FindGuaranteeProblem(candidate, devices_);
      if (problem) {
        it->second = Tell(*problem);
      } else if (quota.revocable && quota.kind && !TraitsOf(*quota.kind).revocable) {
        // Mempool is the only kind without this property.
        it->second = "the tenant's kind is mempool, which cannot be revocable";
      } else {
        quotas = std::move(candidate);
        layered.overridden.emplace(tenant,
                                   OverriddenQuota{std::move(quota), overrides_.at(tenant)});
        it = layered.skipped.erase(it);
        applied = true;
        continue;
      }
      ++it;
    }
  }
  return layered;
}

std::vector<std::string> QuotaControl::Configure(std::map<std::string, Quota> tenants,
                                                 const Quota& defaults) {
  absl::MutexLock lock(&mutex_);
  tenants_ = std::move(tenants);
  defaults_ = defaults;
  Layered layered = Layer(tenants_, defaults_);
  skipped_ = std::move(layered.skipped);
  broker_->operators().Configure(tenants_, defaults_, layered.overridden);
  return TellSkipped(skipped_);
}

std::vector<std::string> QuotaControl::CheckConfigure(const std::map<std::string, Quota>& tenants,
                                                      const Quota& defaults) const {
  absl::MutexLock lock(&mutex_);
  return TellSkipped(Layer(tenants, defaults).skipped);
}

std::vector<std::string> QuotaControl::Skipped() const {
  absl::MutexLock lock(&mutex_);
  return TellSkipped(skipped_);
}

std::vector<std::string> QuotaControl::TellSkipped(
    const std::map<std::string, std::string>& skipped) const {
  std::vector<std::string> sentences;
  for (const auto& [tenant, why] : skipped) {
    sentences.push_back(
        absl::StrCat("the overrides of tenant \"", tenant, "\" (",
                     absl::StrJoin(FieldsOf(overrides_.at(tenant)), ", "),
                     ") conflict with the configuration and are not in force: ", why,
                     "; change one of them, or remove them with gpumemctl quota unset ", tenant));
  }
  return sentences;
}

absl::StatusOr<QuotaControl::Outcome> QuotaControl::Set(const std::string& tenant,
                                                        const QuotaOverride& change) {
  if (absl::Status valid = CheckChange(change); !valid.ok()) return valid;
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<QuotaOverride> changed = Known(tenant);
  if (!changed.ok()) return changed.status();
  Merge(change, &*changed);
  // The devices that this change names must exist. Those of earlier changes may have been removed
  // from the machine, so the check gets this change alone.
  Quota asked;
  Apply(change, &asked);
  return Replace(tenant, *changed, asked);
}

absl::StatusOr<QuotaControl::Outcome> QuotaControl::Unset(const std::string& tenant,
                                                          absl::Span<const std::string> fields) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<QuotaOverride> changed = Known(tenant);
  if (!changed.ok()) return changed.status();
  if (absl::Status removed = Remove(fields, &*changed); !removed.ok()) return removed;
  return Replace(tenant, *changed, /*asked=*/{});
}

absl::StatusOr<QuotaControl::Outcome> QuotaControl::Replace(const std::string& tenant,
                                                            const QuotaOverride& changed,
                                                            const Quota& asked) {
  const Quota base = BaseOf(tenant);
  Quota quota = base;
  Apply(changed, &quota);
  const absl::StatusOr<TenantView> current = broker_->views().GetTenant(tenant);
  const Quota before = current.ok() ? current->quota : base;
  absl::Status allowed = broker_->operators().CheckQuota(tenant, quota, asked);
  if (!allowed.ok() && skipped_.contains(tenant)) {
    // The skipped override is part of `changed`, so it may be the cause.
    return absl::Status(
        allowed.code(),
        absl::StrCat(allowed.message(), "; the earlier overrides of ", tenant, " (",
                     absl::StrJoin(FieldsOf(overrides_.at(tenant)), ", "),
                     ") count as well: remove them first (gpumemctl quota unset ", tenant, ")"));
  }
  if (!allowed.ok()) return allowed;
  // Saved first: a change in force survives a restart.
  Overrides overrides = overrides_;
  std::vector<std::string> fields = FieldsOf(changed);
  if (fields.empty()) {
    overrides.erase(tenant);
  } else {
    overrides[tenant] = changed;
  }
  if (absl::Status saved = save_(overrides); !saved.ok()) return saved;
  overrides_ = std::move(overrides);
  skipped_.erase(tenant);
  absl::StatusOr<TenantView> view =
      fields.empty() ? broker_->operators().UnsetQuota(tenant, quota)
                     : broker_->operators().OverrideQuota(tenant, {quota, changed});
  // The tenant was forgotten after the check. The change is saved: report what it sets.
  if (!view.ok()) return Outcome{.tenant = {.name = tenant, .quota = quota}, .before = before};
  return Outcome{*std::move(view), before, std::move(fields)};
}

absl::StatusOr<TenantView> QuotaControl::CreateTenant(const MadeTenantSpec& spec) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<TenantView> made = broker_->tenants().Create(spec);
  if (!made.ok()) return made.status();
  return Reapply(spec.tenant, *std::move(made));
}

absl::StatusOr<TenantView> QuotaControl::UpdateTenant(const std::string& tenant,
                                                      const std::optional<std::string>& owner,
                                                      const QuotaOverride& change,
                                                      absl::Span<const AuditOperator> by) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<TenantView> changed = broker_->tenants().Update(tenant, owner, change, by);
  if (!changed.ok()) return changed.status();
  return Reapply(tenant, *std::move(changed));
}

absl::StatusOr<TenantView> QuotaControl::Reapply(const std::string& tenant, TenantView view) {
  auto override = overrides_.find(tenant);
  if (override == overrides_.end() || tenants_.contains(tenant)) return view;
  Quota quota = BaseOf(tenant);
  Apply(override->second, &quota);
  absl::Status fits = broker_->operators().CheckQuota(tenant, quota, /*asked=*/{});
  if (fits.ok()) {
    skipped_.erase(tenant);
    return broker_->operators().OverrideQuota(tenant, {quota, override->second});
  }
  skipped_[tenant] = std::string(fits.message());
  return broker_->operators().UnsetQuota(tenant, BaseOf(tenant));
}

std::vector<std::string> QuotaControl::Overridden(const std::string& tenant) const {
  absl::MutexLock lock(&mutex_);
  auto saved = overrides_.find(tenant);
  if (saved == overrides_.end() || skipped_.contains(tenant)) return {};
  return FieldsOf(saved->second);
}

}  // namespace gpumemd
