// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/made_tenants.h"

#include <optional>
#include <vector>

#include "daemon/core/ledger/testing/made/made_tenants.h"

namespace gpumemd::steps {
namespace {

QuotaOverride SomeQuota(Course& course, bool of_operator) {
  Chance& chance = course.chance;
  QuotaOverride own;
  if (chance.In100(60)) {
    own.set.insert("limit_bytes");
    own.values.limit_bytes = 8 * chance.Below(6);
  }
  if (chance.In100(25)) {
    own.set.insert("priority");
    own.values.priority = static_cast<int32_t>(chance.Below(4)) - 1;
  }
  if (chance.In100(15)) {
    own.set.insert("max_sessions");
    own.values.max_sessions = static_cast<uint32_t>(chance.Below(4));
  }
  if (chance.In100(10)) {
    own.set.insert("devices");
    own.values.device_limits[chance.In100(10) ? "elsewhere" : "A"] = chance.Below(40);
  }
  if (chance.In100(10)) {
    own.set.insert("scrub");
    own.values.scrub = chance.In100(50);
  }
  if (course.sound && chance.In100(of_operator ? 30 : 5)) {
    own.set.insert("guarantee_bytes");
    own.values.guarantee_bytes = chance.Below(9);
  }
  return own;
}

std::string Job(Course& course) { return course.chance.In100(50) ? "job1" : "job2"; }

std::vector<std::string> MadeNames(const Course& course) {
  std::vector<std::string> names;
  for (const auto& [name, tenant] : course.model.tenants) {
    if (tenant.made) names.push_back(name);
  }
  return names;
}

std::string AnyMade(Course& course) {
  std::vector<std::string> names = MadeNames(course);
  if (names.empty() || course.chance.In100(10)) return Job(course);
  return course.chance.Of(names);
}

std::optional<std::string> AnyOwner(Course& course) {
  if (course.chance.In100(40)) return std::nullopt;
  return course.chance.In100(90) ? "" : "another";
}

// For a tenant that has just been made.
void CoverOverridden(Course& course, const std::string& tenant) {
  if (course.ledger.state().FindTenant(tenant)->overridden) {
    course.Cover("a tenant with an override is made");
  }
}

}  // namespace

std::string AnyTenant(Course& course) {
  std::vector<std::string> names = MadeNames(course);
  if (names.empty() || course.chance.In100(88)) return course.chance.Tenant();
  return course.chance.Of(names);
}

absl::Status CreateTenant(Course& course) {
  Chance& chance = course.chance;
  if (chance.In100(55)) {
    const SessionId session = course.AnySession();
    const std::string name = chance.In100(60) ? "c1" : "c2";
    const QuotaOverride own = SomeQuota(course, /*of_operator=*/false);
    const bool lasting = chance.In100(30);
    const auto answer = course.ledger.made_tenants().CreateChild(session, name, own, lasting);
    if (answer.ok()) {
      course.Cover(lasting ? "a session makes a lasting tenant" : "a session makes a tenant");
      CoverOverridden(course, *answer);
    }
    return course.After(model::CreateChild(course.model, session, name, own, lasting, answer),
                        lasting ? "CreateLastingChild " : "CreateChild ", ToInt(session), " ", name,
                        " -> ", answer.ok() ? *answer : course.Describe(answer.status()));
  }
  const std::string parent = chance.In100(50)   ? ""
                             : chance.In100(80) ? chance.Tenant()
                                                : Job(course);
  const MadeTenantSpec spec{.tenant = Job(course),
                            .parent = parent,
                            .owner = chance.In100(90) ? "" : "another",
                            .quota = SomeQuota(course, /*of_operator=*/true)};
  const auto answer = course.ledger.made_tenants().Create(spec);
  if (answer.ok() && *answer) {
    course.Cover("an operator makes a tenant");
    CoverOverridden(course, spec.tenant);
  }
  return course.After(model::Create(course.model, spec, answer), "CreateTenant ", spec.tenant,
                      " under \"", parent, "\" -> ",
                      answer.ok() ? "ok" : course.Describe(answer.status()));
}

absl::Status UpdateTenant(Course& course) {
  const std::string tenant = AnyMade(course);
  std::optional<SessionId> session;
  if (course.chance.In100(40)) session = course.AnySession();
  const std::optional<std::string> owner = session ? std::nullopt : AnyOwner(course);
  QuotaOverride change = SomeQuota(course, !session);
  if (course.chance.In100(20) && !change.set.contains("limit_bytes")) {
    change.clear.emplace_back("limit_bytes");
  }
  MadeTenants& made = course.ledger.made_tenants();
  const absl::Status answer =
      session ? made.UpdateChild(*session, tenant, change) : made.Update(tenant, owner, change);
  if (answer.ok()) course.Cover("a made tenant is changed");
  return course.After(model::UpdateMade(course.model, session, tenant, owner, change, answer),
                      "UpdateTenant ", tenant, " -> ", course.Describe(answer));
}

absl::Status EndTenant(Course& course) {
  const std::string tenant = AnyMade(course);
  std::optional<SessionId> session;
  if (course.chance.In100(40)) session = course.AnySession();
  const std::optional<std::string> owner = session ? std::nullopt : AnyOwner(course);
  MadeTenants& made = course.ledger.made_tenants();
  const absl::Status answer = session ? made.EndChild(*session, tenant) : made.End(tenant, owner);
  if (answer.ok()) course.Cover("a made tenant is ended");
  const absl::Status result = model::EndMade(course.model, session, tenant, owner, answer);
  if (answer.ok() && course.model.tenants.contains(tenant)) {
    course.Cover("an ended tenant has something");
  }
  return course.After(result, "EndTenant ", tenant, " -> ", course.Describe(answer));
}

}  // namespace gpumemd::steps
