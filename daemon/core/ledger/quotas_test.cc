// SPDX-License-Identifier: Apache-2.0
// The check of a quota looks at one tenant and those above it. Here it is compared with a search of
// all tenants, on random ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/testing/fixture.h"
#include "daemon/core/quota/guarantees.h"

namespace gpumemd {
namespace quotas_test {

class QuotasTest : public LedgerFixture {
 protected:
  static constexpr int kTenants = 9;

  // Two GPUs of 100 and 60 granules.
  QuotasTest()
      : LedgerFixture({}, {{.uuid = "GPU-1",
                            .capacity_bytes = 100 * kGranule,
                            .granularity_bytes = kGranule,
                            .kinds = {Kind::kVmm}},
                           {.uuid = "GPU-2",
                            .capacity_bytes = 60 * kGranule,
                            .granularity_bytes = kGranule,
                            .kinds = {Kind::kVmm}}}) {}

  uint64_t Granules(int below) { return random_() % below * kGranule; }
  bool Chance(int of) { return random_() % of == 0; }
  std::string Name(int below) { return absl::StrCat("t", random_() % below); }
  Quota RandomQuota(int most) {
    Quota quota;
    if (Chance(2)) quota.guarantee_bytes = Granules(most);
    if (Chance(4)) quota.device_guarantees["GPU-2"] = Granules(most);
    if (Chance(3)) quota.limit_bytes = Granules(3 * most);
    if (Chance(4)) quota.device_limits["GPU-1"] = Granules(3 * most);
    if (Chance(4)) quota.total_limit_bytes = Granules(5 * most);
    if (Chance(40)) quota.guarantee_bytes = UINT64_MAX;
    return quota;
  }

  std::mt19937 random_{7};
};

TEST_F(QuotasTest, ACheckFindsWhatASearchOfAllTenantsFinds) {
  std::map<std::string, int> seen;
  for (int round = 0; round < 20000; ++round) {
    std::map<std::string, Quota> tenants;
    for (int i = 0; i < kTenants - 1; ++i) {
      Quota& quota = tenants.emplace(absl::StrCat("t", i), RandomQuota(25)).first->second;
      if (i > 0 && !Chance(3)) quota.parent = Name(i);
    }
    if (FindGuaranteeProblem(tenants, ledger.state().devices)) continue;
    ledger.tenants().Configure(tenants, {});
    ASSERT_TRUE(ledger.CheckInvariants().ok()) << Broken();

    const std::string name = Name(kTenants), other = Name(kTenants - 1);  // the last is a new one
    Quota quota = RandomQuota(60);
    const auto there = tenants.find(name);
    if (there != tenants.end()) quota.parent = there->second.parent;
    const records::Tenant* parent = nullptr;
    const records::Tenant* const itself = ledger.state().FindTenant(name);
    if (const records::Tenant* to = ledger.state().FindTenant(other);
        Chance(2) && (itself == nullptr || !LedgerState::IsUnder(*to, *itself))) {
      parent = to;
      quota.parent = other;
    }
    tenants[name] = quota;
    std::optional<GuaranteeProblem> problem = FindGuaranteeProblem(tenants, ledger.state().devices);
    const absl::Status told = ledger.tenants().CheckQuota(name, quota, parent);
    const absl::Status brief = ledger.tenants().CheckQuotaInBrief(name, quota, parent);
    ASSERT_EQ(told.code(), brief.code()) << told << " or " << brief;
    if (!problem) {
      ASSERT_TRUE(told.ok()) << "round " << round << ", " << name << ": " << told;
      ++seen["none"];
      continue;
    }
    if (problem->what == GuaranteeProblem::What::kAboveTotalLimit) {
      // Of several totals that are too low, any may be told.
      ASSERT_THAT(told.message(), testing::HasSubstr("above its total limit")) << "round " << round;
    } else {
      ASSERT_EQ(told.message(), Tell(*problem)) << "round " << round;
      problem->parts.clear();
      ASSERT_EQ(brief.message(), Tell(*problem)) << "round " << round;
    }
    ++seen[absl::StrCat(static_cast<int>(problem->what), parent == nullptr ? "" : " moved")];
  }
  for (const char* outcome : {"none", "0", "0 moved", "1", "1 moved", "2", "2 moved", "3"}) {
    EXPECT_GE(seen[outcome], 10) << outcome;
  }
}

TEST_F(QuotasTest, WhatCannotBeTakenBackIsNotOfATenantWithRevocableLeases) {
  const Quota quota = {.kind = Kind::kMempool, .revocable = true};
  for (const absl::Status& status : {ledger.tenants().CheckQuota("t1", quota),
                                     ledger.tenants().CheckQuotaInBrief("t1", quota, nullptr)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

}  // namespace quotas_test
}  // namespace gpumemd
