// SPDX-License-Identifier: Apache-2.0
// Made tenants: what the journal keeps of them, what they inherit, and requests of odd shape.
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/ledger/testing/restart_fixture.h"
#include "daemon/core/quota/testing/change.h"
#include "daemon/core/quota/testing/every_field.h"

namespace gpumemd {
namespace made_edges_test {

using absl::StatusCode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class MadeEdgesTest : public LedgerRestartFixture {
 protected:
  absl::StatusOr<std::string> CreateChild(SessionId session, absl::string_view name,
                                          const QuotaOverride& own = {}, bool lasting = false) {
    return ledger.made_tenants().CreateChild(session, name, own, lasting);
  }
  SessionId Connect(absl::string_view tenant, uid_t uid) {
    auto session = ledger.OpenSession(
        tenant, {.peer = {.pid = ++pids, .start_time = 7, .uid = uid}}, NewSecret());
    EXPECT_TRUE(session.ok()) << session.status();
    return session.value_or(SessionId{});
  }
  const records::MadeTenant* Made(absl::string_view tenant) {
    const records::Tenant* found = ledger.state().FindTenant(tenant);
    return found != nullptr && found->made ? &*found->made : nullptr;
  }
  const Quota& QuotaOf(absl::string_view tenant) {
    return ledger.state().FindTenant(tenant)->quota;
  }
};

// --- Restarts

TEST_F(MadeEdgesTest, EveryFieldOfItsQuotaSurvivesARestart) {
  QuotaOverride own = EveryField();
  own.values.guarantee_bytes = 0;
  own.values.device_guarantees = {{"GPU-2", 0}};
  own.values.limit_bytes = 8 * kGranule;
  ASSERT_EQ(Create({.tenant = "a", .quota = own}), StatusCode::kOk);
  QuotaOverride clear;
  clear.clear = {"max_sessions", "total_limit_bytes"};
  ASSERT_EQ(Create({.tenant = "b", .quota = clear}), StatusCode::kOk);
  Restart();
  ASSERT_NE(Made("a"), nullptr);
  EXPECT_TRUE(Made("a")->quota == own);
  ASSERT_NE(Made("b"), nullptr);
  EXPECT_THAT(Made("b")->quota.clear, UnorderedElementsAre("max_sessions", "total_limit_bytes"));
  const absl::StatusOr<bool> again = ledger.made_tenants().Create({.tenant = "b", .quota = clear});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(*again) << "the same request";
}

TEST_F(MadeEdgesTest, ANewConfigurationMayNameItMeanwhile) {
  ASSERT_EQ(Create({.tenant = "stays", .quota = Guarantee(kGranule)}), StatusCode::kOk);
  ASSERT_EQ(Create({.tenant = "ends"}), StatusCode::kOk);
  OpenSessionOf("ends", 5);
  ASSERT_TRUE(ledger.made_tenants().End("ends", std::nullopt).ok());
  ASSERT_NE(Made("ends"), nullptr) << "it has a session";
  tenants = {{"stays", {.limit_bytes = kGranule}}, {"ends", {}}};
  EXPECT_THAT(Restart().without_guarantees, IsEmpty());
  ASSERT_NE(Made("stays"), nullptr);
  EXPECT_EQ(QuotaOf("stays").limit_bytes, kGranule) << "the configuration decides";
  EXPECT_EQ(Made("ends"), nullptr) << "the name is the configuration's";
}

TEST_F(MadeEdgesTest, WithTheirMakersThoseUnderThemEndAfterARestart) {
  const SessionId maker = Connect("team", 5);
  const std::string child = CreateChild(maker, "a").value();
  const SessionId inside = Connect(child, 5);
  const std::string below = CreateChild(inside, "b").value();
  Restart({.dead = {maker, inside}});
  EXPECT_EQ(Made(child), nullptr);
  EXPECT_EQ(Made(below), nullptr);
}

TEST_F(MadeEdgesTest, AnOverrideIsInForceAfterARestart) {
  ASSERT_EQ(Create({.tenant = "a", .quota = Guarantee(kGranule)}), StatusCode::kOk);
  Ledger next(ledger.state().devices, Bounds{}, [this] { return now; });
  next.tenants().Configure({}, {}, {{"a", {{.limit_bytes = 3 * kGranule}, Limit(3 * kGranule)}}});
  EXPECT_THAT(next.Restore(ledger.Image(), {}).without_guarantees, IsEmpty());
  EXPECT_EQ(next.CheckInvariants(), absl::OkStatus());
  const records::Tenant* const restored = next.state().FindTenant("a");
  ASSERT_NE(restored, nullptr);
  EXPECT_TRUE(restored->made.has_value());
  EXPECT_EQ(restored->quota.limit_bytes, 3 * kGranule);
}

TEST_F(MadeEdgesTest, AnEndThatTheDaemonBeforeBeganIsComplete) {
  ASSERT_EQ(Create({.tenant = "z"}), StatusCode::kOk);
  ASSERT_EQ(Create({.tenant = "b", .parent = "z"}), StatusCode::kOk);
  OpenSession("b");
  ASSERT_TRUE(ledger.made_tenants().End("z", std::nullopt).ok());
  ASSERT_NE(Made("z"), nullptr) << "the tenant under it has a session";
  Ledger next(ledger.state().devices, Bounds{}, [this] { return now; });
  next.tenants().Configure({}, {}, {{"z", {{.limit_bytes = kGranule}, Limit(kGranule)}}});
  next.Restore(ledger.Image(), {});
  EXPECT_EQ(next.CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(next.state().FindTenant("b"), nullptr);
  const records::Tenant* const kept = next.state().FindTenant("z");
  ASSERT_NE(kept, nullptr) << "its override keeps the name";
  EXPECT_FALSE(kept->made.has_value());
}

// A record of a tenant's quota or of its use may be missing: the journal was cut short.
TEST_F(MadeEdgesTest, RecordsThatAreMissingAreNotNeeded) {
  ASSERT_EQ(Create({.tenant = "a", .quota = Limit(kGranule)}), StatusCode::kOk);
  AcquireOne(OpenSession("a"), kGranule);
  JournalImage left = ledger.Image();
  ASSERT_FALSE(left.made_tenant_uses.empty());
  left.made_tenant_quotas.clear();
  auto use = left.made_tenant_uses.begin()->second;
  use.tenant = MadeTenantId{99};
  left.made_tenant_uses.emplace(std::pair(use.tenant, left.made_tenant_uses.begin()->first.second),
                                use);
  Ledger next(ledger.state().devices, Bounds{}, [this] { return now; });
  next.Restore(left, {});
  EXPECT_TRUE(next.CheckInvariants().ok());
  const records::Tenant* const restored = next.state().FindTenant("a");
  ASSERT_NE(restored, nullptr);
  EXPECT_TRUE(restored->made->quota.set.empty());
}

// --- What a session's tenant inherits

TEST_F(MadeEdgesTest, AChildHasNothingMoreThanItsParent) {
  Quota parent{.idle_suspend = absl::Seconds(60)};
  parent.kind = Kind::kVmm;
  parent.max_retained_bytes = 4 * kGranule;
  parent.device_max_retained = {{"GPU-1", 3 * kGranule}, {"GPU-2", 8 * kGranule}};
  Configure({{"team", parent}});
  const SessionId session = Connect("team", 5);
  const std::string plain = CreateChild(session, "plain").value();
  EXPECT_EQ(QuotaOf(plain).idle_suspend, absl::Seconds(60));
  EXPECT_EQ(QuotaOf(plain).kind, Kind::kVmm);
  EXPECT_EQ(QuotaOf(plain).max_retained_bytes, 4 * kGranule);
  EXPECT_EQ(QuotaOf(plain).device_max_retained.at("GPU-1"), 3 * kGranule);

  QuotaOverride own{.set = {"idle_suspend_ms", "max_retained_bytes", "kind"}};
  own.values.idle_suspend = absl::Seconds(5);
  own.values.max_retained_bytes = kGranule;
  own.values.kind = Kind::kMempool;
  const std::string less = CreateChild(session, "less", own).value();
  EXPECT_EQ(QuotaOf(less).idle_suspend, absl::Seconds(5));
  EXPECT_EQ(QuotaOf(less).kind, Kind::kMempool);
  EXPECT_EQ(QuotaOf(less).max_retained_bytes, kGranule);
  EXPECT_EQ(QuotaOf(less).device_max_retained.at("GPU-2"), kGranule);

  own.values.idle_suspend = absl::Seconds(90);
  own.values.max_retained_bytes = 9 * kGranule;
  const std::string more = CreateChild(session, "more", own).value();
  EXPECT_EQ(QuotaOf(more).idle_suspend, absl::Seconds(60));
  EXPECT_EQ(QuotaOf(more).max_retained_bytes, 4 * kGranule);

  const SessionId inside = Connect(less, 5);
  const std::string below = CreateChild(inside, "below").value();
  EXPECT_EQ(QuotaOf(below).max_retained_bytes, kGranule);
  EXPECT_EQ(QuotaOf(below).device_max_retained.at("GPU-1"), kGranule);
}

// --- Requests

TEST_F(MadeEdgesTest, NamesHaveDotsAndUnderscores) {
  EXPECT_EQ(Create({.tenant = "a.b_c-d"}), StatusCode::kOk);
  EXPECT_EQ(Create({.tenant = "a,b"}), StatusCode::kInvalidArgument);
}

TEST_F(MadeEdgesTest, AQuotaThatMakesNoSenseIsRefused) {
  QuotaOverride cleared;
  cleared.clear = {"no_such_field"};
  EXPECT_EQ(Create({.tenant = "a", .quota = cleared}), StatusCode::kInvalidArgument);
  const SessionId session = Connect("team", 5);
  EXPECT_EQ(CreateChild(session, "c", cleared).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CreateChild(session, "c", OnDevice("devices", "GPU-9", 1)).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(ledger.look().GetTenant("a").status().code(), StatusCode::kNotFound);
}

TEST_F(MadeEdgesTest, OnceMoreItIsTheSameRequestOnlyForTheSameUser) {
  const MadeTenantSpec alice{.tenant = "a", .user = 5}, bob{.tenant = "a", .user = 6};
  EXPECT_EQ(Create(alice), StatusCode::kOk);
  EXPECT_EQ(Create(alice), StatusCode::kOk);
  EXPECT_EQ(Create(bob), StatusCode::kAlreadyExists);
  EXPECT_EQ(Create({.tenant = "a"}), StatusCode::kOk) << "an older tool names no user";
  EXPECT_EQ(Create({.tenant = "b"}), StatusCode::kOk);
  EXPECT_EQ(Create({.tenant = "b", .user = 5}), StatusCode::kOk);
}

TEST_F(MadeEdgesTest, WithOtherFieldsClearedItIsAnotherRequest) {
  QuotaOverride one, other;
  one.clear = {"max_sessions"};
  other.clear = {"limit_bytes"};
  EXPECT_EQ(Create({.tenant = "a", .quota = one}), StatusCode::kOk);
  EXPECT_EQ(Create({.tenant = "a", .quota = other}), StatusCode::kAlreadyExists);
}

TEST_F(MadeEdgesTest, ASessionsTenantIsNoOperators) {
  const SessionId session = Connect("team", 5);
  const std::string child = CreateChild(session, "c").value();
  EXPECT_EQ(Create({.tenant = "a", .parent = child}), StatusCode::kNotFound);
  EXPECT_FALSE(ledger.made_tenants().IsMadeByOperator(child));
  EXPECT_FALSE(ledger.made_tenants().IsMadeByOperator("unknown"));
  ASSERT_EQ(Create({.tenant = "job"}), StatusCode::kOk);
  EXPECT_EQ(ledger.made_tenants().RuledBy("job", 5), std::nullopt);
  EXPECT_EQ(ledger.made_tenants().RuledBy(CreateChild(Connect("job", 5), "c").value(), 5), "job");
  // Nor is it one of another session, though of the same user.
  EXPECT_EQ(CreateChild(Connect("team", 5), "c").status().code(), StatusCode::kAlreadyExists);
}

TEST_F(MadeEdgesTest, TenantsAreNotTheirOwnParents) {
  ASSERT_EQ(Create({.tenant = "a"}), StatusCode::kOk);
  ASSERT_EQ(Create({.tenant = "b", .parent = "a"}), StatusCode::kOk);
  OpenSession("b");
  Configure({{"a", {}}});
  ASSERT_TRUE(ledger.made_tenants().End("a", std::nullopt).ok());
  EXPECT_EQ(Create({.tenant = "b", .parent = "b"}), StatusCode::kAlreadyExists);
}

TEST_F(MadeEdgesTest, ATenantIsNotPutUnderOneThatIsUnderIt) {
  Configure({{"a", {}}});
  ASSERT_EQ(Create({.tenant = "b", .parent = "a"}), StatusCode::kOk);
  Configure({});
  ASSERT_EQ(ledger.state().FindTenant("b")->parent, ledger.state().FindTenant("a"));
  EXPECT_EQ(Create({.tenant = "a", .parent = "b"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(Create({.tenant = "a"}), StatusCode::kOk);
}

TEST_F(MadeEdgesTest, LevelsOfSessionsAreBounded) {
  std::string tenant = "team";
  StatusCode last = StatusCode::kOk;
  for (int level = 1; level < 20 && last == StatusCode::kOk; ++level) {
    const auto child = CreateChild(Connect(tenant, 5), "c");
    last = child.status().code();
    if (child.ok()) tenant = *child;
  }
  EXPECT_EQ(last, StatusCode::kFailedPrecondition);
}

TEST_F(MadeEdgesTest, OnlyThoseUnderTheSessionsTenantAreListed) {
  const SessionId one = Connect("one", 5), two = Connect("two", 5);
  const std::string child = CreateChild(one, "c").value();
  EXPECT_THAT(ledger.made_tenants().ListChildren(one).value(), SizeIs(1));
  EXPECT_THAT(ledger.made_tenants().ListChildren(two).value(), IsEmpty());
}

// An operator's change of a tenant that the configuration names by now, or that has an override,
// waits for its time.
TEST_F(MadeEdgesTest, WhatIsMadeGivesWayToTheConfigurationAndOverrides) {
  ASSERT_EQ(Create({.tenant = "a", .quota = Limit(2 * kGranule)}), StatusCode::kOk);
  Configure({{"a", {.limit_bytes = kGranule}}});
  ASSERT_TRUE(ledger.made_tenants().Update("a", std::nullopt, Limit(3 * kGranule)).ok());
  EXPECT_EQ(QuotaOf("a").limit_bytes, kGranule);
  Configure({});
  EXPECT_EQ(QuotaOf("a").limit_bytes, 3 * kGranule);
  SetQuota("a", {.limit_bytes = 5 * kGranule});
  ASSERT_TRUE(ledger.made_tenants().Update("a", std::nullopt, Limit(4 * kGranule)).ok());
  EXPECT_EQ(QuotaOf("a").limit_bytes, 5 * kGranule);
}

TEST_F(MadeEdgesTest, ConfiguredMembersOutliveTheMadePartOfTheirParent) {
  ASSERT_EQ(Create({.tenant = "a"}), StatusCode::kOk);
  Configure({{"a", {}}, {"member", {.parent = "a"}}});
  const SessionId session = OpenSession("member");
  ASSERT_TRUE(ledger.made_tenants().End("a", std::nullopt).ok());
  EXPECT_EQ(Made("a"), nullptr);
  AcquireOne(session, kGranule);
  EXPECT_EQ(Usage("a").leased, kGranule);
}

TEST_F(MadeEdgesTest, AnOverrideOfASessionsTenantIsForTheNextOfItsName) {
  Configure({{"team", {}}});
  const SessionId session = Connect("team", 5);
  const std::string child = CreateChild(session, "c").value();
  SetQuota(child, {.limit_bytes = 2 * kGranule, .parent = "team"});
  SetQuota("team", {.limit_bytes = 9 * kGranule, .priority = -1});
  EXPECT_EQ(QuotaOf(child).priority, -1) << "no operator has changed this field";
  EXPECT_EQ(QuotaOf(child).limit_bytes, 2 * kGranule);
  ASSERT_TRUE(ledger.made_tenants().EndChild(session, child).ok());
  ASSERT_EQ(Made(child), nullptr);
  QuotaOverride next = Limit(5 * kGranule);
  next.set.insert("max_sessions");
  next.values.max_sessions = 3;
  ASSERT_TRUE(CreateChild(session, "c", next).ok());
  ASSERT_NE(Made(child), nullptr);
  EXPECT_EQ(QuotaOf(child).limit_bytes, 2 * kGranule);
  EXPECT_EQ(QuotaOf(child).max_sessions, 3u);
}

TEST_F(MadeEdgesTest, ASessionMayChangeTheFieldsThatNoOperatorHasOverridden) {
  Configure({{"team", {}}});
  const SessionId session = Connect("team", 5);
  const std::string child = CreateChild(session, "c", Limit(4 * kGranule)).value();
  ledger.tenants().OverrideQuota(
      child, {{.limit_bytes = 4 * kGranule, .max_sessions = 2, .parent = "team"},
              {.set = {"max_sessions"}, .values = {.max_sessions = 2}}});
  ASSERT_TRUE(ledger.made_tenants().UpdateChild(session, child, Limit(kGranule)).ok());
  EXPECT_EQ(ledger.made_tenants().UpdateChild(session, child, Guarantee(kGranule)).code(),
            StatusCode::kPermissionDenied);
  EXPECT_EQ(QuotaOf(child).limit_bytes, kGranule);
  EXPECT_EQ(QuotaOf(child).max_sessions, 2u);
}

// Only an override can give a session's tenant a guarantee. A session cannot break that.
TEST_F(MadeEdgesTest, ASessionsTenantFitsWithTheGuaranteeOfItsOverride) {
  Configure({{"team", {.limit_bytes = 4 * kGranule}}, {"member", {.parent = "team"}}});
  const SessionId session = Connect("team", 5);
  const std::string child = CreateChild(session, "c").value();
  ledger.tenants().OverrideQuota(
      child, {{.guarantee_bytes = 3 * kGranule, .parent = "team"}, Guarantee(3 * kGranule)});
  EXPECT_EQ(ledger.made_tenants().UpdateChild(session, child, Limit(2 * kGranule)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(ledger.made_tenants().UpdateChild(session, child, Limit(3 * kGranule)).ok());
  ledger.tenants().OverrideQuota(
      child, {{.device_guarantees = {{"GPU-1", 3 * kGranule}}, .parent = "team"},
              OnDevice("guarantees", "GPU-1", 3 * kGranule)});
  EXPECT_EQ(ledger.made_tenants().UpdateChild(session, child, Limit(2 * kGranule)).code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(ledger.made_tenants().EndChild(session, child).ok());
  EXPECT_EQ(CreateChild(session, "c", Limit(kGranule)).status().code(),
            StatusCode::kInvalidArgument);
  SetQuota("member", {.guarantee_bytes = 2 * kGranule, .parent = "team"});
  const absl::Status refused = CreateChild(session, "c").status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), Not(HasSubstr("(member"))) << "whose guarantee it need not know";
  SetQuota("member", {.guarantee_bytes = kGranule, .parent = "team"});
  EXPECT_EQ(CreateChild(session, "c").value(), child);
  EXPECT_EQ(ledger.CheckInvariants(), absl::OkStatus());
}

TEST_F(MadeEdgesTest, OfATenantThatHasEndedItsOverrideAloneIsLeft) {
  ASSERT_EQ(Create({.tenant = "a", .quota = Limit(2 * kGranule)}), StatusCode::kOk);
  ledger.tenants().OverrideQuota("a", {{.limit_bytes = 2 * kGranule, .priority = 1},
                                       {.set = {"priority"}, .values = {.priority = 1}}});
  ASSERT_TRUE(ledger.made_tenants().End("a", std::nullopt).ok());
  EXPECT_EQ(Made("a"), nullptr);
  EXPECT_EQ(QuotaOf("a").limit_bytes, std::nullopt);
  EXPECT_EQ(QuotaOf("a").priority, 1);
}

}  // namespace made_edges_test
}  // namespace gpumemd
