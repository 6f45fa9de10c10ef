// SPDX-License-Identifier: Apache-2.0
// What made tenants have used: over restarts of the daemon, and after their end.
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/testing/restart_fixture.h"

namespace gpumemd {
namespace {

class MadeTenantUseTest : public LedgerRestartFixture {
 protected:
  void Create(const std::string& tenant, const std::string& parent = "",
              std::optional<uid_t> user = std::nullopt) {
    QuotaOverride own;
    own.set = {"limit_bytes", "guarantee_bytes"};
    own.values.limit_bytes = 8 * kGranule;
    own.values.guarantee_bytes = 4 * kGranule;
    const absl::StatusOr<bool> made = ledger.made_tenants().Create(
        {.tenant = tenant, .parent = parent, .owner = "slurm", .quota = own, .user = user});
    ASSERT_TRUE(made.ok()) << made.status();
  }
  void End(const std::string& tenant) {
    ASSERT_TRUE(ledger.made_tenants().End(tenant, std::nullopt).ok());
  }
  DeviceUsageView On(const std::string& tenant) {
    return ledger.look().GetTenant(tenant)->devices.at(0);
  }
  std::vector<EndedTenantView> EndedOf(const std::string& tenant) {
    return ledger.state().last_ended.Find(tenant);
  }
};

TEST_F(MadeTenantUseTest, SurvivesARestartAndCountsTheTimeBetween) {
  Create("team");
  Create("job-1", "team");
  const SessionId session = OpenSessionOf("job-1", 10);
  const SessionId rules = OpenSessionOf("user-7", 11);
  const Operation operation = AcquireAs(session, {.bytes = 3 * kGranule});
  AcquireAs(session, {.bytes = kGranule});
  AcquireAs(rules, {.bytes = kGranule});
  now += absl::Seconds(10);
  Release(session, {operation.items.at(0)});
  DestroyDoomed();
  now += absl::Seconds(10);
  const uint64_t charged = On("job-1").charged;
  const uint64_t used = On("job-1").byte_seconds;
  EXPECT_EQ(used, 40 * kGranule + 10 * charged);

  now += absl::Hours(1);  // no daemon runs at the end of it: its last record is long past
  Restart();
  EXPECT_EQ(On("job-1").byte_seconds, used + 3600 * charged);
  EXPECT_EQ(On("job-1").peak, 4 * kGranule);
  EXPECT_EQ(On("team").byte_seconds, used + 3600 * charged);
  EXPECT_EQ(On("team").peak, 4 * kGranule);
  EXPECT_EQ(On("user-7").byte_seconds, 0u) << "the journal has made tenants alone";
  now += absl::Seconds(1);
  EXPECT_EQ(On("job-1").byte_seconds, used + 3601 * charged);
  EXPECT_EQ(On("user-7").byte_seconds, kGranule);

  // Another restart finds it, too, and memory that is lost meanwhile counts until then.
  std::set<SegmentId> all;
  for (const auto& [id, segment] : image.segments) all.insert(id);
  now += absl::Seconds(1);
  Restart({.dead = {session}, .missing = all});
  EXPECT_EQ(On("job-1").charged, 0u);
  EXPECT_EQ(On("job-1").byte_seconds, used + 3602 * charged);
  EXPECT_EQ(On("job-1").peak, 4 * kGranule);
}

TEST_F(MadeTenantUseTest, OfADeviceThatIsGoneIsForgotten) {
  Create("job-1");
  const SessionId session = OpenSessionOf("job-1", 10);
  AcquireAs(session, {.bytes = kGranule});
  now += absl::Seconds(10);
  Restart({.dead = {session}, .gone = {"GPU-1"}});
  EXPECT_EQ(On("job-1").device_uuid, "GPU-2");
  EXPECT_EQ(On("job-1").byte_seconds, 0u);
  EXPECT_TRUE(image.made_tenant_uses.empty());
}

TEST_F(MadeTenantUseTest, OfATenantOfARuleGoesOnOnceItIsMade) {
  const SessionId session = OpenSessionOf("job-1", 10);
  AcquireAs(session, {.bytes = kGranule});
  now += absl::Seconds(10);
  Create("job-1");
  Restart();
  EXPECT_EQ(On("job-1").byte_seconds, 10 * kGranule);
}

TEST_F(MadeTenantUseTest, TheJournalForgetsItWithTheTenant) {
  Create("job-1");
  const SessionId session = OpenSessionOf("job-1", 10);
  AcquireAs(session, {.bytes = kGranule});
  Record();
  EXPECT_EQ(image.made_tenant_uses.size(), 1u);
  End("job-1");
  ledger.endings().ProcessGone(session);
  DestroyDoomed();
  Record();
  EXPECT_TRUE(image.made_tenant_uses.empty());
  EXPECT_TRUE(image == ledger.Image());
}

TEST_F(MadeTenantUseTest, IsKnownAfterTheEnd) {
  Create("job-1", "", 1000);
  EXPECT_EQ(ledger.look().GetTenant("job-1")->made->user, 1000u);
  const absl::Time created = now;
  const SessionId session = OpenSessionOf("job-1", 10);
  AcquireAs(session, {.bytes = 2 * kGranule});
  now += absl::Seconds(10);
  Restart();  // who may ask is known to the next daemon, too
  End("job-1");
  EXPECT_TRUE(EndedOf("job-1").empty()) << "it still has memory";
  ledger.endings().ProcessGone(session);
  now += absl::Seconds(5);
  DestroyDoomed();
  const std::vector<EndedTenantView> ended = EndedOf("job-1");
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].name, "job-1");
  EXPECT_EQ(ended[0].owner, "slurm");
  EXPECT_EQ(ended[0].user, 1000u);
  EXPECT_EQ(ended[0].created, created);
  EXPECT_EQ(ended[0].ended, now);
  ASSERT_EQ(ended[0].devices.size(), 3u);
  EXPECT_EQ(ended[0].devices[0].device_uuid, "GPU-1");
  EXPECT_EQ(ended[0].devices[0].limit, 8 * kGranule);
  EXPECT_EQ(ended[0].devices[0].guarantee, 4 * kGranule);
  EXPECT_EQ(ended[0].devices[0].peak, 2 * kGranule);
  EXPECT_EQ(ended[0].devices[0].byte_seconds, 30 * kGranule);
  EXPECT_EQ(ended[0].devices[1].byte_seconds, 0u);

  // The job runs once more.
  now += absl::Seconds(1);
  Create("job-1", "", 1000);
  EXPECT_EQ(On("job-1").byte_seconds, 0u);
  End("job-1");
  EXPECT_EQ(EndedOf("job-1").size(), 2u);
  EXPECT_EQ(EndedOf("job-1")[0].ended, now) << "the newest first";
}

TEST_F(MadeTenantUseTest, BeginsAnewAlsoIfAnOverrideKeepsTheTenant) {
  Create("job-1");
  const SessionId session = OpenSessionOf("job-1", 10);
  AcquireAs(session, {.bytes = kGranule});
  now += absl::Seconds(10);
  SetQuota("job-1", {.limit_bytes = 4 * kGranule});
  End("job-1");
  ledger.endings().ProcessGone(session);
  DestroyDoomed();
  ASSERT_EQ(EndedOf("job-1").size(), 1u);
  EXPECT_EQ(EndedOf("job-1")[0].devices[0].limit, 4 * kGranule);
  EXPECT_EQ(EndedOf("job-1")[0].devices[0].byte_seconds, 10 * kGranule);
  EXPECT_EQ(On("job-1").limit, 4 * kGranule) << "it is there for its override";
  Create("job-1");
  EXPECT_EQ(On("job-1").peak, 0u);
  EXPECT_EQ(On("job-1").byte_seconds, 0u);
}

TEST_F(MadeTenantUseTest, TheLastOnesAreKnownAndNoMore) {
  const size_t most = EndedTenants::kMost;
  for (size_t i = 0; i < most + 50; ++i) {
    const std::string name = absl::StrCat("job-", i);
    Create(name);
    End(name);
    for (int again = 0; i == 0 && again < 30; ++again) {
      Create(name);
      End(name);
      ASSERT_LE(EndedOf(name).size(), EndedTenants::kMostOfName);
    }
  }
  EXPECT_EQ(ledger.state().last_ended.size(), most);
  EXPECT_TRUE(EndedOf("job-0").empty());
  EXPECT_TRUE(EndedOf("job-49").empty());
  EXPECT_EQ(EndedOf("job-50").size(), 1u);
  EXPECT_EQ(EndedOf(absl::StrCat("job-", most + 49)).size(), 1u);
}

TEST_F(MadeTenantUseTest, TenantsOfSessionsDriveNoJobOut) {
  Create("job-1");
  End("job-1");
  const SessionId session = OpenSessionOf("user-7", 10);
  for (size_t i = 0; i < EndedTenants::kMost; ++i) {
    const absl::StatusOr<std::string> child =
        ledger.made_tenants().CreateChild(session, "run", QuotaOverride());
    ASSERT_TRUE(child.ok()) << child.status();
    ASSERT_TRUE(ledger.made_tenants().EndChild(session, *child).ok());
  }
  EXPECT_EQ(ledger.state().last_ended.size(), 1u);
  EXPECT_EQ(EndedOf("job-1").size(), 1u);
}

}  // namespace
}  // namespace gpumemd
