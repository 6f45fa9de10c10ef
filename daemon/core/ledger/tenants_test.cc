// SPDX-License-Identifier: Apache-2.0
// Tenants, their quotas, and what gives their retained memory back: trimming and draining.
#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using TenantsTest = LedgerFixture;

TEST_F(TenantsTest, TenantsMadeByARuleAreForgottenWhenIdle) {
  ledger.tenants().Configure({{"configured", {}}}, {.limit_bytes = 4 * kGranule});
  const SessionId session = OpenSession("uid-1000");
  EXPECT_EQ(ledger.look().GetQuota("uid-1000")->limit_bytes, 4 * kGranule);
  EXPECT_FALSE(ledger.look().GetTenant("uid-1000")->configured);
  const auto item = AcquireOne(session, kGranule);
  ledger.endings().ProcessGone(session);
  EXPECT_EQ(ledger.state().tenants.size(), 2u);  // the driver still has its segment
  EXPECT_THAT(DestroyDoomed(), ElementsAre(item.segment));
  EXPECT_EQ(ledger.state().tenants.size(), 1u);
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetQuota("uid-1000").status()));
  EXPECT_TRUE(ledger.look().GetTenant("configured")->configured);
}

TEST_F(TenantsTest, ConfigureTakesEffectAtOnceAndRevokesNothing) {
  ledger.tenants().Configure({{"team", {}}, {"leaving", {}}}, {});
  const SessionId session = OpenSession("team");
  const SessionId leaving = OpenSession("leaving");
  const auto items = Acquire(session, kGranule, 4);
  ledger.tenants().Configure({{"team", {.limit_bytes = kGranule}}, {"new", {}}},
                             {.limit_bytes = 2 * kGranule});
  EXPECT_EQ(Usage("team").leased, 4 * kGranule);
  EXPECT_EQ(Usage("team").limit, kGranule);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, 1).status()));
  EXPECT_TRUE(ledger.look().GetTenant("new")->configured);
  EXPECT_FALSE(ledger.look().GetTenant("leaving")->configured);
  EXPECT_EQ(Usage("leaving").limit, 2 * kGranule);
  ledger.endings().SocketClosed(leaving);
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetTenant("leaving").status()));
}

TEST_F(TenantsTest, UnknownTenantsAndDevicesAreNotFound) {
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetQuota("team").status()));
  ledger.tenants().Configure({{"team", {}}}, {});
  EXPECT_TRUE(absl::IsNotFound(ledger.tenants().CheckDevices({.device_limits = {{"GPU-9", 1}}})));
  EXPECT_EQ(*ledger.look().GetQuota("team"), Quota{});
  EXPECT_TRUE(absl::IsNotFound(ledger.look().ListSessions("nobody").status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.look().ListSegments("nobody", "").status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.look().ListSegments("team", "GPU-9").status()));
}

TEST_F(TenantsTest, AQuotaWhoseParentIsAMemberHasNoParent) {
  ledger.tenants().Configure({{"a", {}}, {"b", {.parent = "a"}}}, {});
  ledger.tenants().OverrideQuota("a", {{.parent = "b"}});
  EXPECT_THAT(ledger.look().GetTenant("a")->above, IsEmpty());
  EXPECT_THAT(ledger.look().GetTenant("b")->above, ElementsAre("a"));
}

// --- Giving memory back ----------------------------------------------------------------

TEST_F(TenantsTest, TrimKeepsTheYoungest) {
  const SessionId session = OpenSession("team");
  const auto items = Acquire(session, kGranule, 3);
  const auto elsewhere = Acquire(session, kGranule, 1, "GPU-2");
  Release(session, {items[2]});
  Release(session, {items[0], items[1]});
  Release(session, elsewhere);
  const auto first = ledger.segments().Trim("team", "GPU-1", 2 * kGranule);
  EXPECT_THAT(*first, ElementsAre(items[2].segment));
  EXPECT_THAT(*ledger.segments().Trim("", "", 2 * kGranule - 1),
              ElementsAre(items[0].segment));  // a segment is kept whole or not at all
  EXPECT_THAT(*ledger.segments().Trim("", "", 0),
              ElementsAre(items[1].segment, elsewhere[0].segment));
  EXPECT_EQ(DestroyDoomed().size(), 4u);  // each exactly once
  EXPECT_THAT(Drain(ledger.effects().doomed), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(ledger.segments().Trim("nobody", "", 0).status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.segments().Trim("", "GPU-9", 0).status()));
}

TEST_F(TenantsTest, DrainingAdmitsNothingAndRetainsNothing) {
  const SessionId session = OpenSession("team");
  const auto items = Acquire(session, kGranule, 2);
  const Secret ticket = Share(session, items[0].lease);
  const auto kept = AcquireOne(session, kGranule);
  const Operation under_way = Begin(session, kGranule);
  Release(session, {kept});
  ledger.SetDraining(true);
  EXPECT_THAT(Drain(ledger.effects().doomed), ElementsAre(kept.segment));
  EXPECT_TRUE(absl::IsUnavailable(ledger.OpenSession("team", {}, NewSecret()).status()));
  EXPECT_TRUE(absl::IsUnavailable(Ask(session, 1).status()));
  EXPECT_TRUE(absl::IsUnavailable(ledger.operations().BeginOpen(session, {ticket}).status()));
  EXPECT_TRUE(ledger.operations().Commit(under_way).ok());  // operations in flight may end
  EXPECT_EQ(Usage("team").leased, 3 * kGranule);
  Release(session, {items[1]});
  EXPECT_THAT(Drain(ledger.effects().doomed), ElementsAre(items[1].segment));
  ledger.SetDraining(false);
  OpenTicket(session, ticket);
  Release(session, {items[0]});
}

}  // namespace
}  // namespace gpumemd
