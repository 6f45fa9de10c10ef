// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/operators.h"

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ledger/testing/model/compare.h"
#include "daemon/core/ledger/testing/model/tenants.h"
#include "daemon/core/ledger/testing/steps/course.h"
#include "daemon/core/ledger/testing/steps/made_tenants.h"
#include "daemon/core/quota/guarantees.h"
#include "daemon/core/quota/overrides.h"
#include "daemon/core/quota/testing/change.h"

namespace gpumemd::steps {
namespace {

const Quota& ConfiguredOf(const Course& course, const std::string& tenant) {
  auto it = course.configured.find(tenant);
  return it == course.configured.end() ? course.defaults : it->second;
}

bool Unsound(const Course& course, const std::map<std::string, Quota>& tenants) {
  for (const auto& [name, quota] : tenants) {
    if (!quota.parent.empty() && (!tenants.contains(quota.parent) || quota.parent <= name)) {
      return true;
    }
  }
  std::map<std::string, Quota> with_made = tenants;
  with_made.merge(course.ledger.tenants().MadeQuotas(course.defaults));
  return FindGuaranteeProblem(with_made, course.devices).has_value();
}

bool IsMade(const Course& course, const std::string& tenant) {
  const auto found = course.model.tenants.find(tenant);
  return found != course.model.tenants.end() && found->second.made;
}

bool MayBeMade(absl::string_view tenant) {
  return IsNameOfChild(tenant) || absl::StartsWith(tenant, "job");
}

// Returns the name of a tenant that was made, or may be made later.
std::string AnyToMake(Course& course) {
  const std::string made = AnyTenant(course);
  if (IsMade(course, made)) return made;
  if (course.chance.In100(30)) return course.chance.In100(50) ? "job1" : "job2";
  return absl::StrCat(course.chance.Tenant(), course.chance.In100(60) ? ":0.c1" : ":0.c2");
}

// An operator overrides some fields of the quota of such a tenant.
absl::Status OverrideMade(Course& course) {
  const std::string tenant = AnyToMake(course);
  const Quota base =
      IsMade(course, tenant)
          ? course.ledger.tenants().QuotaOf(*course.ledger.state().FindTenant(tenant)->made)
          : course.defaults;
  if (course.chance.In100(15)) {
    const absl::Status answer = course.ledger.tenants().UnsetQuota(tenant, base).status();
    return course.After(model::UnsetQuota(course.model, tenant, base, answer), "UnsetQuota ",
                        tenant, " -> ", course.Describe(answer));
  }
  Quota values = course.chance.TenantQuota(course.sound);
  if (course.sound) {  // what it is made with later still fits
    values.guarantee_bytes.reset();
    values.device_guarantees.clear();
    values.limit_bytes.reset();
    values.device_limits.clear();
  }
  OverriddenQuota overridden{base, Difference(values)};
  Apply(overridden.changes, &overridden.quota);
  if (!course.model.tenants.contains(tenant)) {  // as after a start, before the tenant is made
    course.ledger.tenants().OverrideQuota(tenant, overridden);
    model::OverrideQuota(course.model, tenant, overridden);
    return course.After(absl::OkStatus(), "OverrideQuota ", tenant);
  }
  absl::Status answer = course.ledger.tenants().CheckDevices(overridden.quota);
  answer.Update(course.ledger.tenants().CheckQuota(tenant, overridden.quota));
  if (answer.ok()) {
    course.ledger.tenants().OverrideQuota(tenant, overridden);
    if (IsMade(course, tenant)) course.Cover("a made tenant's quota is overridden");
  }
  return course.After(model::SetQuota(course.model, tenant, overridden, answer), "OverrideMade ",
                      tenant, " -> ", course.Describe(answer));
}

}  // namespace

absl::Status Configure(Course& course) {
  // In a sound episode, all guarantees can be kept at the same time, also those of made tenants.
  for (int tries = 0; tries == 0 || (course.sound && Unsound(course, course.configured)); ++tries) {
    course.configured.clear();
    for (const char* tenant : {"alpha", "beta", "gamma"}) {
      if (!course.chance.In100(70)) continue;
      course.configured[tenant] = course.chance.TenantQuota(course.sound);
      course.configured[tenant].parent = course.chance.Parent(tenant);
      if (tries > 20) course.configured[tenant].limit_bytes.reset();
    }
    // Made tenants without a parent follow it.
    course.defaults = course.chance.TenantQuota(course.sound);
    if (course.sound) {  // tenants that come and go have no guarantee
      course.defaults.guarantee_bytes.reset();
      course.defaults.device_guarantees.clear();
    }
    course.defaults.parent = course.chance.Parent("uid");
  }
  // Overrides of the configuration's tenants end with it. In a sound episode others always fit.
  std::map<std::string, OverriddenQuota> overridden = model::Overridden(course.model);
  std::erase_if(overridden, [&](const auto& each) { return !MayBeMade(each.first); });
  for (auto& [name, quota] : overridden) {
    quota.quota = course.defaults;
    Apply(quota.changes, &quota.quota);
  }
  course.ledger.tenants().Configure(course.configured, course.defaults, overridden);
  model::Configure(course.model, course.configured, course.defaults, overridden);
  return course.After(absl::OkStatus(), "Configure ", course.configured.size(), " tenants");
}

absl::Status SetQuota(Course& course) {
  if (course.chance.In100(20)) return OverrideMade(course);
  const std::string tenant = course.chance.Tenant();
  Quota quota = course.chance.TenantQuota(course.sound);
  quota.parent = (course.model.tenants.contains(tenant) ? model::QuotaOf(course.model, tenant)
                                                        : ConfiguredOf(course, tenant))
                     .parent;
  if (course.chance.In100(15)) {
    const Quota& configured = ConfiguredOf(course, tenant);
    const absl::Status answer = course.ledger.tenants().UnsetQuota(tenant, configured).status();
    return course.After(model::UnsetQuota(course.model, tenant, configured, answer), "UnsetQuota ",
                        tenant, " -> ", course.Describe(answer));
  }
  if (course.chance.In100(course.sound ? 30 : 80)) {
    if (course.sound) {
      quota.guarantee_bytes.reset();
      quota.device_guarantees.clear();
    }
    const OverriddenQuota overridden{quota, Difference(quota)};
    course.ledger.tenants().OverrideQuota(tenant, overridden);
    model::OverrideQuota(course.model, tenant, overridden);
    return course.After(absl::OkStatus(), "OverrideQuota ", tenant);
  }
  if (!course.sound || !course.model.tenants.contains(tenant)) return absl::OkStatus();
  if (course.chance.In100(5)) quota.device_limits["elsewhere"] = 1;
  absl::Status answer = course.ledger.tenants().CheckDevices(quota);
  answer.Update(course.ledger.tenants().CheckQuota(tenant, quota));  // keeps the first error
  const OverriddenQuota overridden{quota, Difference(quota)};
  if (answer.ok()) course.ledger.tenants().OverrideQuota(tenant, overridden);
  if (answer.ok()) course.Cover("a quota is set");
  return course.After(model::SetQuota(course.model, tenant, overridden, answer), "SetQuota ",
                      tenant, " -> ", course.Describe(answer));
}

absl::Status SetDraining(Course& course, bool draining) {
  course.ledger.SetDraining(draining);
  model::SetDraining(course.model, draining);
  return course.After(absl::OkStatus(), "SetDraining ", draining);
}

absl::Status SetUnbrokered(Course& course, bool any) {
  std::vector<UnbrokeredBytes> uses;
  for (const auto& [id, session] : course.model.sessions) {
    if (!any || course.chance.In100(60)) continue;
    uses.push_back({.session = id,
                    .device_uuid = course.devices[course.chance.Below(2)].uuid,
                    .bytes = 1 + course.chance.Below(20),
                    .denies = course.chance.In100(30)});
  }
  course.ledger.SetUnbrokered(uses);
  model::SetUnbrokered(course.model, uses);
  return course.After(absl::OkStatus(), "SetUnbrokered ", uses.size());
}

absl::Status CompareSome(Course& course) {
  const std::string tenant = course.chance.In100(30) ? "" : course.chance.Tenant();
  const std::string device = course.chance.In100(10) ? "elsewhere" : course.chance.Device();
  return course.After(
      model::CompareFiltered(course.model, course.ledger, tenant, device, course.now), "List \"",
      tenant, "\" \"", device, "\"");
}

}  // namespace gpumemd::steps
