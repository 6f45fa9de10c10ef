#include "daemon/core/rules.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

PeerIdentity Alice() {
  return {.pid = 4711,
          .uid = 1000,
          .gid = 100,
          .groups = {24, 27},
          .cgroup = "/user.slice/user-1000.slice/session-3.scope"};
}

TEST(RulesTest, WithoutConditionsItMatchesAll) {
  EXPECT_TRUE(Matches({.tenant = "all"}, Alice()));
  EXPECT_TRUE(Matches({.tenant = "all"}, PeerIdentity{}));
}

TEST(RulesTest, Uid) {
  EXPECT_TRUE(Matches({.uid = 1000}, Alice()));
  EXPECT_FALSE(Matches({.uid = 1001}, Alice()));
  EXPECT_FALSE(Matches({.uid = 0}, Alice()));
}

TEST(RulesTest, GidIsThePrimaryOneOrASupplementaryOne) {
  EXPECT_TRUE(Matches({.gid = 100}, Alice()));
  EXPECT_TRUE(Matches({.gid = 24}, Alice()));
  EXPECT_TRUE(Matches({.gid = 27}, Alice()));
  EXPECT_FALSE(Matches({.gid = 25}, Alice()));
  EXPECT_FALSE(Matches({.gid = 1000}, Alice()));  // a uid is no gid
}

TEST(RulesTest, Cgroup) {
  EXPECT_TRUE(Matches({.cgroup = "/user.slice/user-1000.slice/session-3.scope"}, Alice()));
  EXPECT_TRUE(Matches({.cgroup = "/user.slice/*"}, Alice()));  // '*' goes across '/'
  EXPECT_TRUE(Matches({.cgroup = "*/session-[0-9].scope"}, Alice()));
  EXPECT_FALSE(Matches({.cgroup = "/user.slice"}, Alice()));  // the whole path, not a part
  EXPECT_FALSE(Matches({.cgroup = "user.slice/*"}, Alice()));
  EXPECT_FALSE(Matches({.cgroup = "/system.slice/*"}, Alice()));
}

TEST(RulesTest, AnUnknownCgroupMatchesNoPattern) {
  PeerIdentity peer = Alice();
  peer.cgroup.clear();
  EXPECT_FALSE(Matches({.cgroup = "*"}, peer));
  EXPECT_FALSE(Matches({.cgroup = ""}, peer));
  EXPECT_TRUE(Matches({.uid = 1000}, peer));
}

TEST(RulesTest, EveryConditionHasToHold) {
  for (const bool uid : {true, false}) {
    for (const bool gid : {true, false}) {
      for (const bool cgroup : {true, false}) {
        const Rule rule{.uid = uid ? 1000 : 1,
                        .gid = gid ? 24 : 1,
                        .cgroup = cgroup ? "/user.slice/*" : "/system.slice/*"};
        EXPECT_EQ(Matches(rule, Alice()), uid && gid && cgroup);
      }
    }
  }
}

TEST(RulesTest, TheFirstThatMatchesDecides) {
  const std::vector<Rule> rules = {
      {.tenant = "root", .uid = 0, .description = "rule 1 (user = root)"},
      {.tenant = "staff", .gid = 27, .description = "rule 2 (group = staff)"},
      {.tenant = "alice", .uid = 1000, .description = "rule 3 (user = alice)"},
  };
  const auto match = MatchTenant(rules, Alice(), "");
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->tenant, "staff");
  EXPECT_EQ(match->rule, "rule 2 (group = staff)");
}

TEST(RulesTest, ATemplateStandsForThePeersUid) {
  const std::vector<Rule> rules = {{.tenant = "uid-{uid}/{uid}", .description = "default"}};
  EXPECT_EQ(MatchTenant(rules, Alice(), "")->tenant, "uid-1000/1000");
  EXPECT_EQ(MatchTenant(rules, Alice(), "uid-1000/1000")->tenant, "uid-1000/1000");
  EXPECT_TRUE(absl::IsPermissionDenied(MatchTenant(rules, Alice(), "uid-1001/1001").status()));
  // The template is no name.
  EXPECT_TRUE(absl::IsPermissionDenied(MatchTenant(rules, Alice(), "uid-{uid}/{uid}").status()));
}

TEST(RulesTest, AWishedTenantIsHadWhereAMatchingRuleNamesIt) {
  const std::vector<Rule> rules = {
      {.tenant = "staff", .gid = 27, .description = "rule 1"},
      {.tenant = "secret", .uid = 0, .description = "rule 2"},
      {.tenant = "alice", .uid = 1000, .description = "rule 3"},
  };
  const auto match = MatchTenant(rules, Alice(), "alice");
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->tenant, "alice");
  EXPECT_EQ(match->rule, "rule 3");

  const absl::Status refused = MatchTenant(rules, Alice(), "secret").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(refused.message(),
            "no rule lets process 4711 (uid 1000, gid 100, cgroup "
            "/user.slice/user-1000.slice/session-3.scope) be tenant \"secret\"; the rules allow "
            "it: staff, alice");
}

TEST(RulesTest, WhomNoRuleMatchesIsToldSo) {
  PeerIdentity peer = Alice();
  peer.cgroup.clear();
  const std::vector<Rule> rules = {{.tenant = "root", .uid = 0}};
  for (const char* wished : {"", "root"}) {
    const absl::Status refused = MatchTenant(rules, peer, wished).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(refused.message(),
              "no rule of the daemon's configuration matches process 4711 (uid 1000, gid 100, "
              "cgroup unknown); ask the operator for a [[rule]] that does");
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("root")));  // tells no names
  }
  EXPECT_TRUE(absl::IsPermissionDenied(MatchTenant({}, peer, "").status()));
}

}  // namespace
}  // namespace gpumemd
