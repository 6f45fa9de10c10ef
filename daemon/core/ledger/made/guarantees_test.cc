// SPDX-License-Identifier: Apache-2.0
// Guarantees of made tenants after a restart, where they no longer fit.
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/testing/restart_fixture.h"
#include "daemon/core/quota/testing/change.h"

namespace gpumemd {
namespace made_guarantees_test {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using MadeGuaranteesTest = LedgerRestartFixture;

TEST_F(MadeGuaranteesTest, GuaranteesThatNoLongerFitAfterARestartAreNotInForce) {
  EXPECT_EQ(Create({.tenant = "a", .quota = Guarantee(300 * kGranule)}), StatusCode::kOk);
  EXPECT_EQ(Create({.tenant = "b", .quota = Guarantee(400 * kGranule)}), StatusCode::kOk);
  tenants["team"].guarantee_bytes = 600 * kGranule;  // written while no daemon ran
  const Restored restored = Restart();
  ASSERT_EQ(restored.without_guarantees.size(), 1u);
  EXPECT_THAT(restored.without_guarantees[0], HasSubstr("tenant \"b\""));
  EXPECT_EQ(Usage("a").guarantee, 300 * kGranule);
  EXPECT_EQ(Usage("b").guarantee, 0u);
  // Once the owner asks for one that fits, it is in force again.
  EXPECT_TRUE(ledger.made_tenants().Update("b", std::nullopt, Guarantee(100 * kGranule)).ok());
  EXPECT_EQ(Usage("b").guarantee, 100 * kGranule);
}

TEST_F(MadeGuaranteesTest, AGuaranteeThatFitsStaysBesideAnOlderOneThatDoesNot) {
  tenants["team"].guarantee_bytes = 10 * kGranule;
  tenants["other"].guarantee_bytes = 10 * kGranule;
  Configure(tenants);
  for (const char* parent : {"team", "other"}) {
    EXPECT_EQ(Create({.tenant = absl::StrCat(parent, "-job"),
                      .parent = parent,
                      .quota = Guarantee(10 * kGranule)}),
              StatusCode::kOk);
  }
  tenants["team"].limit_bytes = 10 * kGranule - 1;  // written while no daemon ran
  tenants["team"].guarantee_bytes = 0;
  EXPECT_THAT(Restart().without_guarantees, ElementsAre(HasSubstr("team-job")));
  EXPECT_EQ(Usage("team-job").guarantee, 0u);
  EXPECT_EQ(Usage("other-job").guarantee, 10 * kGranule);
}

TEST_F(MadeGuaranteesTest, GuaranteesOfManyThatDoNotFitAreGivenUp) {
  constexpr int kTenants = 70;
  for (int i = 0; i < kTenants; ++i) {
    const QuotaOverride own =
        i % 2 == 0 ? Guarantee(10 * kGranule) : OnDevice("guarantees", "GPU-1", 10 * kGranule);
    ASSERT_EQ(Create({.tenant = "job-" + std::to_string(i), .quota = own}), StatusCode::kOk);
  }
  tenants = {{"team", {.guarantee_bytes = kCapacity}}};
  EXPECT_THAT(Restart().without_guarantees, SizeIs(kTenants));
  EXPECT_EQ(Usage("job-0").guarantee, 0u);
  EXPECT_EQ(Usage("job-1").guarantee, 0u);
  EXPECT_EQ(Usage("team").guarantee, kCapacity);
}

TEST_F(MadeGuaranteesTest, AnOverrideOfAnotherFieldKeepsNoGuaranteeThatDoesNotFit) {
  const QuotaOverride priority = {.set = {"priority"}, .values = {.priority = 1}};
  for (const char* name : {"a", "b"}) {
    ASSERT_EQ(Create({.tenant = name, .quota = Guarantee(10 * kGranule)}), StatusCode::kOk);
  }
  Ledger next(ledger.state().devices, Bounds{}, [this] { return now; });
  next.tenants().Configure({{"team", {.guarantee_bytes = kCapacity - 10 * kGranule}}}, {},
                           {{"a", {{.guarantee_bytes = 10 * kGranule}, Guarantee(10 * kGranule)}},
                            {"b", {{}, priority}}});
  EXPECT_THAT(next.Restore(ledger.Image(), {}).without_guarantees, ElementsAre(HasSubstr("\"b\"")));
  EXPECT_EQ(next.state().FindTenant("a")->quota.guarantee_bytes, 10 * kGranule);
  EXPECT_EQ(next.state().FindTenant("b")->quota.guarantee_bytes, std::nullopt);
  EXPECT_EQ(next.state().FindTenant("b")->quota.priority, 1);
  EXPECT_EQ(next.CheckInvariants(), absl::OkStatus());
}

TEST_F(MadeGuaranteesTest, AnOverrideForOneDeviceKeepsNoGuaranteeOnAnother) {
  ASSERT_EQ(Create({.tenant = "a", .quota = Guarantee(10 * kGranule)}), StatusCode::kOk);
  ASSERT_EQ(Create({.tenant = "b", .quota = OnDevice("guarantees", "GPU-1", 10 * kGranule)}),
            StatusCode::kOk);
  const QuotaOverride on_first = OnDevice("guarantees", "GPU-1", 5 * kGranule);
  Ledger next(ledger.state().devices, Bounds{}, [this] { return now; });
  next.tenants().Configure({{"team", {.device_guarantees = {{"GPU-2", kCapacity}}}}}, {},
                           {{"a", {on_first.values, on_first}}});
  EXPECT_THAT(next.Restore(ledger.Image(), {}).without_guarantees, ElementsAre(HasSubstr("\"a\"")));
  EXPECT_EQ(next.state().FindTenant("a")->quota.guarantee_bytes, std::nullopt);
  EXPECT_EQ(next.state().FindTenant("a")->quota.device_guarantees,
            on_first.values.device_guarantees);
  EXPECT_EQ(next.state().FindTenant("b")->quota.device_guarantees.at("GPU-1"), 10 * kGranule)
      << "newer, but it fits";
}

}  // namespace made_guarantees_test
}  // namespace gpumemd
