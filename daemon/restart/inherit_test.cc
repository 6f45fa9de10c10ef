// SPDX-License-Identifier: Apache-2.0
// The sessions of an earlier daemon whose processes still live, and the rules that they have now.
#include "daemon/restart/inherit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/descriptors_left.h"
#include "daemon/core/identity/rules.h"
#include "daemon/core/journal/image.h"
#include "daemon/transport/peer/peer.h"

namespace gpumemd {
namespace inherit_test {

constexpr SessionId kSession{7};
constexpr char kUnknown[] = "the rule that applied when it connected to a previous daemon";

class FindSurvivorsTest : public ::testing::Test {
 protected:
  FindSurvivorsTest() {
    rules = {{.tenant = "job-{uid}", .made = true, .description = "rule 1 (made)"},
             {.tenant = "user-{uid}", .description = "rule 2"}};
  }
  // Of an operator, or of a session.
  void Make(const std::string& name, const std::string& parent = "", SessionId session = {}) {
    const MadeTenantId id{++last_made};
    image.made_tenants[id] = {.id = id, .session = session, .name = name, .parent = parent};
  }
  // Returns the match of this process, which has a session of the tenant.
  TenantMatch MatchOf(const std::string& tenant) {
    image.sessions[kSession] = {.id = kSession,
                                .pid = getpid(),
                                .start_time = StartTimeOf(getpid()),
                                .uid = 5,
                                .tenant = tenant};
    const auto survivors = FindSurvivors(image, rules);
    EXPECT_TRUE(survivors.ok()) << survivors.status();
    if (!survivors.ok()) return {};
    EXPECT_EQ(survivors->size(), 1u);
    if (survivors->empty()) return {};
    const Survivor& survivor = survivors->begin()->second;
    EXPECT_EQ(survivor.match.tenant, tenant);
    EXPECT_EQ(survivor.details.rule, survivor.match.rule);
    return survivor.match;
  }

  std::vector<Rule> rules;
  JournalImage image;
  uint64_t last_made = 0;
};

TEST_F(FindSurvivorsTest, HaveTheRuleThatGivesThemTheirTenant) {
  EXPECT_EQ(MatchOf("user-5").rule, "rule 2");
  EXPECT_EQ(MatchOf("user-5").rule_number, 2u);
  EXPECT_EQ(MatchOf("before").rule, kUnknown) << "no rule gives it any more";
}

TEST_F(FindSurvivorsTest, RulesKnowTheTenantsThatOperatorsMade) {
  EXPECT_EQ(MatchOf("job-5").rule, kUnknown) << "no operator has made it";
  Make("job-5", "", SessionId{3});
  EXPECT_EQ(MatchOf("job-5").rule, kUnknown) << "a session has";
  image.made_tenants.clear();
  Make("job-5");
  EXPECT_EQ(MatchOf("job-5").rule, "rule 1 (made)");
}

TEST_F(FindSurvivorsTest, OfTenantsThatSessionsMadeTheRulesDecideAboutTheOneAbove) {
  Make("user-5:5.run", "user-5", SessionId{3});
  Make("user-5:5.run:part", "user-5:5.run", SessionId{4});
  EXPECT_EQ(MatchOf("user-5:5.run").rule, "rule 2");
  EXPECT_EQ(MatchOf("user-5:5.run:part").rule, "rule 2");
  EXPECT_EQ(MatchOf("user-5:5.none").rule, kUnknown);
}

TEST_F(FindSurvivorsTest, ACycleOfParentsEnds) {
  Make("a", "b", SessionId{3});
  Make("b", "a", SessionId{3});
  EXPECT_EQ(MatchOf("a").rule, kUnknown);
}

TEST_F(FindSurvivorsTest, AreOfTheSameProcess) {
  MatchOf("user-5");
  image.sessions[kSession].start_time += 1;
  const auto survivors = FindSurvivors(image, rules);
  ASSERT_TRUE(survivors.ok()) << survivors.status();
  EXPECT_TRUE(survivors->empty()) << "another process has its pid now";
}

// /proc hid its start time, and the pid may be another's by now.
TEST_F(FindSurvivorsTest, HiddenOnesAreNotCertain) {
  MatchOf("user-5");
  EXPECT_TRUE(FindSurvivors(image, rules)->at(kSession).details.certain);
  image.sessions[kSession].start_time = 0;
  const auto survivors = FindSurvivors(image, rules);
  ASSERT_TRUE(survivors.ok() && survivors->contains(kSession)) << survivors.status();
  const Survivor& hidden = survivors->at(kSession);
  EXPECT_FALSE(hidden.details.certain);
  EXPECT_FALSE(hidden.peer.certain);
  EXPECT_EQ(hidden.details.peer.start_time, 0u) << "that of a stranger, perhaps";
  EXPECT_THAT(DescribeInheritance({}, image, *survivors),
              ::testing::Contains(::testing::StartsWith("1 session is of a process that cannot")));
  image.sessions[kSession].start_time = StartTimeOf(getpid());
  image.sessions[kSession].certain = false;
  EXPECT_FALSE(FindSurvivors(image, rules)->at(kSession).peer.certain) << "nor was it before";
}

TEST_F(FindSurvivorsTest, AreNotGivenUpWhereNoneCanBeFound) {
  MatchOf("user-5");
  const gpumem::testing::DescriptorsLeft none(0);
  const auto survivors = FindSurvivors(image, rules);
  EXPECT_TRUE(absl::IsResourceExhausted(survivors.status())) << survivors.status();
}

}  // namespace inherit_test
}  // namespace gpumemd
