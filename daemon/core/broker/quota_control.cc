// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/broker/quota_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/quota/guarantees.h"

namespace gpumemd {

QuotaControl::QuotaControl(Broker* broker, std::vector<DeviceInfo> devices, Overrides overrides,
                           Save save)
    : broker_(broker),
      devices_(std::move(devices)),
      save_(std::move(save)),
      overrides_(std::move(overrides)) {}

const Quota& QuotaControl::BaseOf(const std::string& tenant) const {
  auto configured = tenants_.find(tenant);
  return configured == tenants_.end() ? defaults_ : configured->second;
}

absl::StatusOr<QuotaOverride> QuotaControl::Known(const std::string& tenant) const {
  // A tenant whose override is skipped need not exist.
  if (auto known = overrides_.find(tenant); known != overrides_.end()) return known->second;
  if (absl::Status found = broker_->views().GetTenant(tenant).status(); !found.ok()) return found;
  return QuotaOverride();
}

std::vector<std::string> QuotaControl::Configure(std::map<std::string, Quota> tenants,
                                                 const Quota& defaults) {
  absl::MutexLock lock(&mutex_);
  tenants_ = std::move(tenants);
  defaults_ = defaults;
  skipped_.clear();
  std::map<std::string, Quota> quotas = tenants_;  // with the overrides that are applied
  std::map<std::string, Quota> overridden;
  for (const auto& [tenant, override] : overrides_) skipped_[tenant];
  // An override that lowers a guarantee makes room for one that raises another. Repeat until none
  // of the rest applies.
  for (bool more = true; more;) {
    more = false;
    for (auto it = skipped_.begin(); it != skipped_.end();) {
      const std::string& tenant = it->first;
      Quota quota = BaseOf(tenant);
      Apply(overrides_.at(tenant), &quota);
      std::map<std::string, Quota> with = quotas;
      with.insert_or_assign(tenant, quota);
      std::optional<GuaranteeProblem> problem = FindGuaranteeProblem(with, devices_);
      if (problem) {
        it->second = Tell(*problem);
      } else if (quota.revocable && quota.kind && !TraitsOf(*quota.kind).revocable) {
        it->second = "the tenant's kind is mempool, which cannot be revocable";
      } else {
        quotas = std::move(with);
        overridden.emplace(tenant, std::move(quota));
        it = skipped_.erase(it);
        more = true;
        continue;
      }
      ++it;
    }
  }
  broker_->operators().Configure(tenants_, defaults_, overridden);
  return TellSkipped();
}

std::vector<std::string> QuotaControl::Skipped() const {
  absl::MutexLock lock(&mutex_);
  return TellSkipped();
}

std::vector<std::string> QuotaControl::TellSkipped() const {
  std::vector<std::string> sentences;
  for (const auto& [tenant, why] : skipped_) {
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
  if (absl::Status right = CheckChange(change); !right.ok()) return right;
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<QuotaOverride> changed = Known(tenant);
  if (!changed.ok()) return changed.status();
  Merge(change, &*changed);
  // A device of an earlier override may be gone by now; the devices of this change must exist.
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
  return Replace(tenant, *changed, {});
}

absl::StatusOr<QuotaControl::Outcome> QuotaControl::Replace(const std::string& tenant,
                                                            const QuotaOverride& changed,
                                                            const Quota& asked) {
  Quota quota = BaseOf(tenant);
  Apply(changed, &quota);
  const absl::StatusOr<TenantView> known = broker_->views().GetTenant(tenant);
  const Quota before = known.ok() ? known->quota : BaseOf(tenant);
  absl::Status right = broker_->operators().CheckQuota(tenant, quota, asked);
  if (!right.ok() && skipped_.contains(tenant)) {
    return absl::Status(
        right.code(),
        absl::StrCat(right.message(), "; the earlier overrides of ", tenant, " (",
                     absl::StrJoin(FieldsOf(overrides_.at(tenant)), ", "),
                     ") count as well: remove them first (gpumemctl quota unset ", tenant, ")"));
  }
  if (!right.ok()) return right;
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
  absl::StatusOr<TenantView> view = fields.empty()
                                        ? broker_->operators().UnsetQuota(tenant, quota)
                                        : broker_->operators().OverrideQuota(tenant, quota);
  if (!view.ok())
    return Outcome{.tenant = {.name = tenant, .quota = quota}, .before = before};  // gone by now
  return Outcome{*std::move(view), before, std::move(fields)};
}

std::vector<std::string> QuotaControl::Overridden(const std::string& tenant) const {
  absl::MutexLock lock(&mutex_);
  auto known = overrides_.find(tenant);
  if (known == overrides_.end() || skipped_.contains(tenant)) return {};
  return FieldsOf(known->second);
}

}  // namespace gpumemd
