// SPDX-License-Identifier: Apache-2.0
// Tenants that sessions make under their own.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "daemon/core/ledger/testing/restart_fixture.h"
#include "daemon/core/quota/testing/change.h"

namespace gpumemd {
namespace {

using absl::StatusCode;

class MadeChildrenTest : public LedgerRestartFixture {
 protected:
  SessionId Connect(absl::string_view tenant, uid_t uid) {
    auto session = TryConnect(tenant, uid);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.value_or(SessionId{});
  }
  absl::StatusOr<SessionId> TryConnect(absl::string_view tenant, uid_t uid) {
    return ledger.OpenSession(tenant, {.peer = {.pid = ++pids, .start_time = 7, .uid = uid}},
                              NewSecret());
  }
  absl::StatusOr<std::string> Create(SessionId session, absl::string_view name,
                                     const QuotaOverride& quota = {}, bool lasting = false) {
    return ledger.made_tenants().CreateChild(session, name, quota, lasting);
  }
  std::vector<std::string> List(SessionId session) {
    auto names = ledger.made_tenants().ListChildren(session);
    EXPECT_TRUE(names.ok()) << names.status();
    return names.value_or(std::vector<std::string>());
  }
  bool Exists(absl::string_view tenant) { return ledger.look().GetTenant(tenant).ok(); }
};

TEST_F(MadeChildrenTest, ACapWithinTheParentsThatEndsWithItsMaker) {
  ledger.tenants().Configure({}, {.limit_bytes = 4 * kGranule});
  const SessionId maker = Connect("user-5", 5);
  const absl::StatusOr<std::string> child = Create(maker, "run", Limit(2 * kGranule));
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(*child, "user-5:5.run");
  EXPECT_EQ(*Create(maker, "run", Limit(2 * kGranule)), *child) << "once more";
  EXPECT_EQ(Create(maker, "run", Limit(3 * kGranule)).status().code(), StatusCode::kAlreadyExists);
  const SessionId session = Connect(*child, 5);
  const auto item = AcquireOne(session, 2 * kGranule);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, kGranule).status()));
  AcquireOne(maker, 2 * kGranule);
  Release(session, {item});
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(maker, 3 * kGranule).status()))
      << "the parent's limit counts both";
  AcquireOne(session, 2 * kGranule);

  ledger.endings().ProcessGone(maker);
  EXPECT_EQ(Ask(session, kGranule).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(TryConnect(*child, 5).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Exists("user-5")) << "its child still has memory";
  ledger.endings().ProcessGone(session);
  DestroyDoomed();
  EXPECT_FALSE(Exists(*child));
  EXPECT_FALSE(Exists("user-5"));
  EXPECT_EQ(TryConnect(*child, 5).status().code(), StatusCode::kFailedPrecondition)
      << "no rule's tenant comes to be under that name";
  EXPECT_FALSE(Exists(*child));
}

TEST_F(MadeChildrenTest, NamesOfTwoUsersDoNotCollide) {
  const SessionId one = Connect("shared", 5), other = Connect("shared", 6);
  EXPECT_EQ(*Create(one, "run"), "shared:5.run");
  EXPECT_EQ(*Create(other, "run"), "shared:6.run");
  const std::string first = *Create(one, ""), second = *Create(one, "");
  EXPECT_NE(first, second);
  for (const char* name : {"a b", "a/b", "a:b", "\xff", "\n"}) {
    EXPECT_EQ(Create(one, name).status().code(), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(Create(one, std::string(60, 'a')).status().code(), StatusCode::kInvalidArgument);
  // A child of a child.
  const SessionId inner = Connect("shared:5.run", 5);
  EXPECT_EQ(*Create(inner, "part"), "shared:5.run:part");
}

TEST_F(MadeChildrenTest, OnlyItsUserMayEnterChangeOrEndIt) {
  const SessionId one = Connect("shared", 5), other = Connect("shared", 6);
  const std::string child = *Create(one, "run");
  MadeTenants& made = ledger.made_tenants();
  EXPECT_EQ(made.RuledBy(child, 5), "shared");
  EXPECT_EQ(made.RuledBy(child, 6), std::nullopt);
  EXPECT_EQ(made.RuledBy("shared", 5), std::nullopt) << "the rules decide";
  EXPECT_EQ(made.RuledBy("shared:5.none", 5), std::nullopt);
  EXPECT_EQ(made.UpdateChild(other, child, Limit(5)).code(), StatusCode::kNotFound);
  EXPECT_EQ(made.EndChild(other, child).code(), StatusCode::kNotFound);
  EXPECT_EQ(made.EndChild(one, "shared").code(), StatusCode::kNotFound);
  const SessionId second = Connect("shared", 5);
  EXPECT_TRUE(made.UpdateChild(second, child, Limit(5 * kGranule)).ok());
  EXPECT_EQ(Usage(child).limit, 5 * kGranule);
  EXPECT_TRUE(made.EndChild(second, child).ok());
  EXPECT_FALSE(Exists(child));
  EXPECT_TRUE(Create(one, "run").ok()) << "the name is free";
}

TEST_F(MadeChildrenTest, ASessionInsideMayNotWidenItsOwnTenant) {
  const SessionId maker = Connect("user-5", 5);
  const std::string child = *Create(maker, "run", Limit(kGranule));
  const SessionId inside = Connect(child, 5);
  EXPECT_EQ(ledger.made_tenants().UpdateChild(inside, child, Limit(9 * kGranule)).code(),
            StatusCode::kNotFound);
}

TEST_F(MadeChildrenTest, ThePreloadModeIsThatOfTheNextTenantAboveThatHasOne) {
  const auto mode = [&](absl::string_view name) { return ledger.look().GetTenant(name)->preload; };
  ledger.tenants().Configure({{"team", {.preload = PreloadMode::kBroker}}}, {.parent = "team"});
  const SessionId maker = Connect("user-5", 5);
  EXPECT_EQ(mode("user-5"), PreloadMode::kBroker);
  const std::string child = *Create(maker, "run");
  EXPECT_EQ(mode(child), PreloadMode::kBroker);
  QuotaOverride own;
  own.set = {"preload"};
  own.values.preload = PreloadMode::kAccount;
  EXPECT_EQ(mode(*Create(maker, "other", own)), PreloadMode::kAccount);
  ledger.tenants().Configure({{"team", {}}}, {.parent = "team"});
  EXPECT_EQ(mode(child), PreloadMode::kAccount) << "the default";
  own.values.preload = PreloadMode::kBroker;
  EXPECT_TRUE(ledger.made_tenants().UpdateChild(maker, child, own).ok());
  EXPECT_EQ(mode(child), PreloadMode::kBroker);
  EXPECT_EQ(mode("user-5"), PreloadMode::kAccount);
}

TEST_F(MadeChildrenTest, NothingThatTheParentLacks) {
  Quota strict = {.max_retained_bytes = kGranule, .priority = 2, .scrub = true};
  strict.release = ReleasePolicy::kOnExit;
  strict.swappable = true;
  Configure({{"team", strict}});
  const SessionId maker = Connect("team", 5);
  QuotaOverride own;
  own.set = {"guarantee_bytes"};
  own.values.guarantee_bytes = kGranule;
  EXPECT_EQ(Create(maker, "a", own).status().code(), StatusCode::kPermissionDenied);
  own.set = {"max_in_flight"};
  own.values = {.max_in_flight = 9};
  EXPECT_EQ(Create(maker, "a", own).status().code(), StatusCode::kPermissionDenied);
  own.set = {"priority"};
  own.values = {.priority = 3};
  EXPECT_EQ(Create(maker, "a", own).status().code(), StatusCode::kPermissionDenied);
  own.set = {"scrub", "release", "swappable", "max_retained_bytes"};
  own.values = {.max_retained_bytes = 5 * kGranule};
  const std::string child = *Create(maker, "a", own);
  Quota quota = *ledger.look().GetQuota(child);
  EXPECT_TRUE(quota.scrub && quota.swappable);
  EXPECT_EQ(quota.release, ReleasePolicy::kOnExit);
  EXPECT_EQ(quota.max_retained_bytes, kGranule);
  EXPECT_EQ(quota.priority, 2);
  // Later changes of the parent reach it.
  strict.priority = -4;
  strict.revocable = true;
  SetQuota("team", strict);
  EXPECT_EQ(ledger.look().GetQuota(child)->priority, -4);
  EXPECT_TRUE(ledger.look().GetQuota(child)->revocable);
  strict.priority = -5;
  Configure({{"team", strict}});
  EXPECT_EQ(ledger.look().GetQuota(child)->priority, -5);
}

TEST_F(MadeChildrenTest, BoundsOfCountsAreTheParents) {
  Configure({{"team", {.max_in_flight = 2}}});
  const SessionId maker = Connect("team", 5);
  const SessionId one = Connect(*Create(maker, "a"), 5), two = Connect(*Create(maker, "b"), 5);
  EXPECT_TRUE(ledger.sessions().BeginCall(one).ok());
  EXPECT_TRUE(ledger.sessions().BeginCall(two).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.sessions().BeginCall(maker)));
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.sessions().BeginCall(one)));
  ledger.sessions().EndCall(two);
  EXPECT_TRUE(ledger.sessions().BeginCall(one).ok());
  ledger.sessions().EndCall(one);
  ledger.sessions().EndCall(one);
}

TEST_F(MadeChildrenTest, AUserMakesSoManyAndNoMore) {
  std::destroy_at(&ledger);
  std::construct_at(&ledger, std::vector<DeviceInfo>{Device("GPU-1", {Kind::kVmm})},
                    Bounds{.max_made_tenants = 9, .max_made_by_sessions = 4, .max_made_per_uid = 3},
                    [this] { return now; });
  const SessionId one = Connect("a", 5), other = Connect("b", 6);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Create(one, "").ok());
  const absl::Status more = Create(Connect("c", 5), "").status();
  EXPECT_EQ(DenialOf(more)->cause, Denial::Cause::kDaemonLimit) << more;
  EXPECT_TRUE(Create(other, "").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Create(other, "").status()));
  EXPECT_TRUE(ledger.made_tenants().Create({.tenant = "job"}).ok()) << "operators have room";
}

TEST_F(MadeChildrenTest, TheDaemonsBoundCountsThoseOfOperators) {
  std::destroy_at(&ledger);
  std::construct_at(&ledger, std::vector<DeviceInfo>{Device("GPU-1", {Kind::kVmm})},
                    Bounds{.max_made_tenants = 2}, [this] { return now; });
  ASSERT_TRUE(ledger.made_tenants().Create({.tenant = "job"}).ok());
  const SessionId session = Connect("team", 5);
  ASSERT_TRUE(Create(session, "a").ok());
  const absl::Status more = Create(session, "b").status();
  ExpectDenial(more, Denial::Cause::kDaemonLimit, "team", "", /*asked=*/1, /*used=*/2,
               /*limit=*/2);
  ASSERT_TRUE(ledger.made_tenants().End("job", std::nullopt).ok());
  EXPECT_TRUE(Create(session, "b").ok());
}

TEST_F(MadeChildrenTest, ALastingOneOutlivesItsMakerAndIsItsUsers) {
  const SessionId maker = Connect("user-5", 5), other = Connect("user-5", 6);
  const std::string child = *Create(maker, "kept", Limit(2 * kGranule), /*lasting=*/true);
  EXPECT_EQ(child, "user-5:5.kept");
  EXPECT_EQ(Create(maker, "", {}, true).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Create(maker, "kept", Limit(2 * kGranule)).status().code(), StatusCode::kAlreadyExists)
      << "one that ends with the session is another";
  ledger.endings().ProcessGone(maker);
  ASSERT_TRUE(Exists(child));
  EXPECT_TRUE(ledger.look().GetTenant(child)->made->lasting);
  // Another session of the user goes on with it, and a command that is repeated is no error.
  const SessionId second = Connect("user-5", 5);
  EXPECT_EQ(*Create(second, "kept", Limit(2 * kGranule), true), child);
  EXPECT_EQ(Create(second, "kept", Limit(3 * kGranule), true).status().code(),
            StatusCode::kAlreadyExists);
  const SessionId inside = Connect(child, 5);
  AcquireOne(inside, 2 * kGranule);
  const absl::Status more = Ask(inside, kGranule).status();
  EXPECT_TRUE(absl::IsResourceExhausted(more));
  EXPECT_TRUE(absl::StrContains(more.message(), "gpumemctl tenant update user-5:5.kept --limit"))
      << more << ": no operator is needed";
  EXPECT_EQ(List(second), std::vector<std::string>{child});
  EXPECT_TRUE(List(other).empty()) << "another user's";
  EXPECT_TRUE(List(inside).empty()) << "not its own";
  MadeTenants& made = ledger.made_tenants();
  EXPECT_EQ(made.UpdateChild(other, child, Limit(kGranule)).code(), StatusCode::kNotFound);
  EXPECT_EQ(made.UpdateChild(inside, child, Limit(9 * kGranule)).code(), StatusCode::kNotFound);
  EXPECT_EQ(made.EndChild(other, child).code(), StatusCode::kNotFound);
  EXPECT_TRUE(made.UpdateChild(second, child, Limit(3 * kGranule)).ok());
  AcquireOne(inside, kGranule);
  EXPECT_TRUE(made.EndChild(second, child).ok());
  EXPECT_EQ(Ask(inside, kGranule).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(List(second), std::vector<std::string>{child}) << "until it is gone";
  ledger.endings().ProcessGone(inside);
  DestroyDoomed();
  EXPECT_TRUE(List(second).empty());
}

TEST_F(MadeChildrenTest, LastingOnesSurviveRestartsWithoutAnySession) {
  const SessionId maker = Connect("user-5", 5);
  const std::string kept = *Create(maker, "kept", Limit(2 * kGranule), true);
  const std::string brief = *Create(maker, "brief");
  const SessionId inside = Connect(kept, 5);
  const std::string deep = *Create(inside, "part", Limit(kGranule), true);
  Restart({.dead = {maker, inside}});
  EXPECT_FALSE(Exists(brief));
  Restart({});
  ASSERT_TRUE(Exists(deep));
  EXPECT_EQ(Usage(kept).limit, 2 * kGranule);
  EXPECT_EQ(Usage(deep).limit, kGranule);
  EXPECT_EQ(ledger.made_tenants().RuledBy(deep, 5), "user-5");
  EXPECT_EQ(ledger.made_tenants().RuledBy(deep, 6), std::nullopt);
  const SessionId user = Connect("user-5", 5);
  EXPECT_EQ(List(user), (std::vector<std::string>{kept, deep}));
  EXPECT_TRUE(ledger.made_tenants().EndChild(user, kept).ok());
  EXPECT_TRUE(List(user).empty()) << "those under it end with it";
  ledger.endings().ProcessGone(user);
  EXPECT_FALSE(Exists("user-5"));
}

TEST_F(MadeChildrenTest, ALastingOneEndsWithTheTenantAboveIt) {
  const SessionId maker = Connect("user-5", 5);
  const SessionId inside = Connect(*Create(maker, "run"), 5);
  const std::string deep = *Create(inside, "part", {}, true);
  ledger.endings().ProcessGone(maker);
  EXPECT_TRUE(!Exists(deep) || ledger.look().GetTenant(deep)->made->ending);
  const SessionId user = Connect("user-5", 5);
  const std::string kept = *Create(user, "kept", {}, true);
  EXPECT_TRUE(ledger.made_tenants().End(kept, std::nullopt).ok()) << "an operator may end it";
  EXPECT_FALSE(Exists(kept));
}

TEST_F(MadeChildrenTest, LastingOnesAreFewerAndLeaveRoomForTheOthers) {
  std::destroy_at(&ledger);
  std::construct_at(&ledger, std::vector<DeviceInfo>{Device("GPU-1", {Kind::kVmm})},
                    Bounds{.max_made_per_uid = 3,
                           .max_lasting = 4,
                           .max_lasting_per_uid = 2,
                           .max_lasting_per_tenant = 3},
                    [this] { return now; });
  const auto denied = [&](SessionId session, absl::string_view name) {
    const absl::Status status = Create(session, name, {}, true).status();
    return absl::IsResourceExhausted(status) && DenialOf(status).has_value();
  };
  const SessionId one = Connect("team", 5), two = Connect("team", 6), far = Connect("b", 7);
  const std::string first = *Create(one, "a", {}, true);
  EXPECT_TRUE(Create(one, "b", {}, true).ok());
  EXPECT_TRUE(denied(one, "c")) << "of a user";
  EXPECT_TRUE(Create(one, "").ok()) << "one that ends with the session has room";
  EXPECT_TRUE(Create(two, "a", {}, true).ok());
  EXPECT_TRUE(denied(two, "b")) << "of a tenant";
  EXPECT_TRUE(denied(Connect(first, 5), "deep")) << "those under it count, too";
  EXPECT_TRUE(Create(far, "a", {}, true).ok());
  EXPECT_TRUE(denied(far, "b")) << "in all";
  EXPECT_TRUE(ledger.made_tenants().EndChild(one, "team:5.b").ok());
  EXPECT_TRUE(Create(far, "b", {}, true).ok());
}

// The next daemon knows the override before it knows the made tenant, and so without its parent.
TEST_F(MadeChildrenTest, AnOverriddenOneIsUnderItsParentAfterARestart) {
  const SessionId maker = Connect("user-5", 5);
  const std::string run = *Create(maker, "run");
  const std::string kept = *Create(maker, "kept", {}, true);
  SetQuota(kept, {.limit_bytes = 2 * kGranule, .parent = "user-5"});
  overridden = {{kept, {{.limit_bytes = 2 * kGranule}, Limit(2 * kGranule)}}};
  Restart({.dead = {maker}});
  EXPECT_FALSE(Exists(run));
  ASSERT_TRUE(Exists("user-5")) << "a tenant is under it";
  EXPECT_EQ(ledger.made_tenants().RuledBy(kept, 5), "user-5");
  EXPECT_EQ(Usage(kept).limit, 2 * kGranule);
  const SessionId inside = Connect(kept, 5);
  EXPECT_TRUE(ledger.sessions().BeginCall(inside).ok());
  ledger.sessions().EndCall(inside);
  AcquireOne(inside, kGranule);
  EXPECT_EQ(Usage("user-5").leased, kGranule) << "the parent's limits count it";
  const SessionId user = Connect("user-5", 5);
  EXPECT_TRUE(ledger.made_tenants().UpdateChild(user, kept, Limit(kGranule)).ok());
  EXPECT_TRUE(ledger.made_tenants().End(kept, std::nullopt).ok());
}

TEST_F(MadeChildrenTest, OneThatIsMadeAgainAfterAReloadIsUnderItsParentDespiteAnOverride) {
  const SessionId maker = Connect("user-5", 5);
  const std::string child = *Create(maker, "c");
  SetQuota(child, {.limit_bytes = 2 * kGranule, .parent = "user-5"});
  ASSERT_TRUE(ledger.made_tenants().EndChild(maker, child).ok());
  ledger.tenants().Configure({}, {},
                             {{child, {{.limit_bytes = 2 * kGranule}, Limit(2 * kGranule)}}});
  ASSERT_EQ(*Create(maker, "c", {}, true), child);
  EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  EXPECT_EQ(ledger.made_tenants().RuledBy(child, 5), "user-5");
  ledger.endings().ProcessGone(maker);
  EXPECT_TRUE(Exists("user-5"));
}

// Only its name and quota are left, which are under nothing.
TEST_F(MadeChildrenTest, AnOverrideOfOneThatHasEndedKeepsNoParent) {
  const SessionId maker = Connect("user-5", 5);
  const std::string child = *Create(maker, "c");
  const SessionId inside = Connect(child, 5);
  const std::string below = *Create(inside, "g", {}, true);
  SetQuota(below, {.limit_bytes = 2 * kGranule, .parent = child});
  ledger.endings().ProcessGone(inside);
  ASSERT_TRUE(ledger.made_tenants().EndChild(maker, child).ok());
  EXPECT_TRUE(Exists(below)) << "its override keeps the name";
  EXPECT_FALSE(Exists(child));
  ASSERT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  ASSERT_EQ(*Create(maker, "c"), child);
  EXPECT_EQ(*Create(Connect(child, 5), "g"), below);
  EXPECT_EQ(ledger.made_tenants().RuledBy(below, 5), "user-5");
  EXPECT_EQ(Usage(below).limit, 2 * kGranule);
  EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
}

TEST_F(MadeChildrenTest, AfterARestartThoseOfDeadMakersHaveEnded) {
  const SessionId lives = Connect("a", 5), dies = Connect("b", 5);
  const std::string kept = *Create(lives, "run", Limit(2 * kGranule));
  const std::string ended = *Create(dies, "run"), empty = *Create(dies, "none");
  const SessionId session = Connect(ended, 5), inner = Connect(kept, 5);
  const std::string deep = *Create(inner, "part", Limit(kGranule));
  AcquireOne(session, kGranule);
  const SessionId deepest = Connect(deep, 5);
  AcquireOne(deepest, kGranule);
  Restart({.dead = {dies}});
  EXPECT_FALSE(Exists(empty));
  EXPECT_EQ(Ask(session, kGranule).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(deepest, kGranule).status()));
  EXPECT_EQ(Usage(kept).leased, kGranule);
  EXPECT_EQ(Usage(kept).limit, 2 * kGranule);
  EXPECT_EQ(ledger.made_tenants().RuledBy(deep, 5), "a");
  ledger.endings().ProcessGone(lives);
  EXPECT_EQ(Ask(deepest, kGranule).status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace gpumemd
