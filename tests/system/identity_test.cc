// SPDX-License-Identifier: Apache-2.0
// Billing by a real daemon: rules by the kernel's report of a process's cgroup, in groups of the
// running kernel, and WhoAmI's answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/live_cgroup.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::DaemonProcess;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HelloOf;
using testing::kAnswerTime;
using testing::LiveCgroup;
using testing::WireSession;

constexpr int kChannel = 3;

absl::StatusOr<v1::WhoAmIResponse> WhoAmI(WireSession& session) {
  auto broker = session.TakeBroker();
  return testing::CallBroker(*broker, &v1::Broker::Stub::WhoAmI, v1::WhoAmIRequest(),
                             session.token());
}

// Joins the groups, connects, leaves them for `later` if given, and reports WhoAmI's answer.
int AskInGroups(const std::string& socket, const std::string& groups, const std::string& later) {
  for (absl::string_view procs : absl::StrSplit(groups, ',', absl::SkipEmpty())) {
    if (!testing::Join(std::string(procs))) return 1;
  }
  WireSession session(socket);
  if (!session.Greet(HelloOf("")).ok()) return 2;
  if (!later.empty() && !testing::Join(later)) return 3;
  auto answer = WhoAmI(session);
  if (!answer.ok()) return 4;
  return SendMessage(kChannel, answer->SerializeAsString(), {}, absl::Now() + kAnswerTime).ok() ? 0
                                                                                                : 5;
}

class IdentityTest : public ::testing::Test {
 protected:
  void StartDaemon(const std::string& config) {
    auto daemon = DaemonProcess::Start({.config = config});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
  }
  std::string Socket() const { return daemon_->Socket("session.sock"); }
  // Returns WhoAmI's answer to a process in these groups.
  v1::WhoAmIResponse AskIn(const std::string& groups, const std::string& later = "") {
    Child child = Child::Self({"--role", Socket(), groups, later});
    v1::WhoAmIResponse answer;
    auto message = ReceiveMessage(child.channel(), absl::Now() + kAnswerTime);
    EXPECT_OK(message);
    EXPECT_TRUE(message.ok() && answer.ParseFromString(message->bytes));
    EXPECT_EQ(child.Wait(), 0);
    return answer;
  }
  // "/gpumemtestPID.slice/UNIT": of no other test that runs.
  std::string GroupOf(const std::string& unit) {
    return absl::StrCat("/gpumemtest", getpid(), ".slice/", unit);
  }
  static std::vector<std::string> FactValues(const v1::WhoAmIResponse& answer,
                                             const std::string& name) {
    for (const v1::CgroupFact& fact : answer.identity().facts()) {
      if (fact.name() == name) return {fact.values().begin(), fact.values().end()};
    }
    return {};
  }

  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(IdentityTest, WhoAmITellsWhyTheRulesBeforeDidNotDecide) {
  StartDaemon(absl::StrCat("[[tenant]]\nname = \"none\"\n[[tenant]]\nname = \"mine\"\n",
                           "[[rule]]\ntenant = \"none\"\nuid = 4000000\n",
                           "[[rule]]\ntenant = \"none\"\ngid = 4000000\nuid = ", geteuid(), "\n",
                           "[[rule]]\ntenant = \"mine\"\nuid = ", geteuid(), "\n",
                           "[[rule]]\ntenant = \"secret-{uid}\"\ndefault = true\n"));
  WireSession session(Socket());
  ASSERT_OK(session.Greet(HelloOf("")));
  auto answer = WhoAmI(session);
  ASSERT_OK(answer);
  EXPECT_EQ(answer->tenant(), "mine");
  EXPECT_THAT(answer->path(), ElementsAre("mine"));
  EXPECT_EQ(answer->rule(), absl::StrCat("rule 3 (uid = ", geteuid(), ")"));
  EXPECT_EQ(answer->rule(), session.welcome().rule());
  EXPECT_EQ(answer->rule_number(), 3u);
  ASSERT_EQ(answer->passed_size(), 2);
  EXPECT_EQ(answer->passed(0).ShortDebugString(), "number: 1 condition: \"uid\"");
  EXPECT_EQ(answer->passed(1).ShortDebugString(), "number: 2 condition: \"gid\"");
  EXPECT_EQ(answer->identity().pid(), getpid());
  EXPECT_EQ(answer->identity().uid(), geteuid());
  EXPECT_EQ(answer->identity().gid(), getegid());
  // The answer has no conditions or names of other rules.
  EXPECT_EQ(answer->ShortDebugString().find("4000000"), std::string::npos);
  EXPECT_EQ(answer->ShortDebugString().find("secret"), std::string::npos);

  WireSession other(Socket());
  ASSERT_OK(other.Greet(HelloOf(absl::StrCat("secret-", geteuid()))));
  auto wished = WhoAmI(other);
  ASSERT_OK(wished);
  EXPECT_EQ(wished->rule_number(), 4u);
  EXPECT_EQ(wished->passed(2).ShortDebugString(), "number: 3 condition: \"tenant\"");
}

TEST_F(IdentityTest, AUnitOfTheRunningKernelNamesTheTenant) {
  if (testing::InAUnit()) GTEST_SKIP() << "this test runs in a unit of systemd itself";
  auto group = LiveCgroup::Make("", GroupOf("train@7.service"));
  if (!group.ok()) GTEST_SKIP() << group.status().message();
  auto other = LiveCgroup::Make("", GroupOf("other.service"));
  ASSERT_OK(other);
  StartDaemon(
      "[[rule]]\ntenant = \"of-{unit}\"\nunit = \"train@*.service\"\nslice = \"gpumemtest*\"\n"
      "[[rule]]\ntenant = \"all-{uid}\"\ndefault = true\n");
  v1::WhoAmIResponse answer = AskIn((*group)->procs());
  EXPECT_EQ(answer.tenant(), "of-train_7.service");
  EXPECT_EQ(answer.rule(), "rule 1 (unit = train@*.service, slice = gpumemtest*)");
  EXPECT_THAT(FactValues(answer, "unit"), ElementsAre("train@7.service"));
  EXPECT_THAT(FactValues(answer, "slice"),
              ElementsAre(absl::StrCat("gpumemtest", getpid(), ".slice")));
  EXPECT_EQ(AskIn((*other)->procs()).tenant(), absl::StrCat("all-", geteuid()));
  EXPECT_EQ(AskIn("").tenant(), absl::StrCat("all-", geteuid()));
  // It keeps its identity from the connect, wherever it moves.
  answer = AskIn((*group)->procs(), (*other)->procs());
  EXPECT_EQ(answer.tenant(), "of-train_7.service");
  EXPECT_THAT(FactValues(answer, "unit"), ElementsAre("train@7.service"));
}

TEST_F(IdentityTest, HierarchiesThatDisagreeAreBilledByUid) {
  if (testing::InAUnit()) GTEST_SKIP() << "this test runs in a unit of systemd itself";
  auto pids = LiveCgroup::Make("pids", GroupOf("one.service"));
  if (!pids.ok()) GTEST_SKIP() << pids.status().message();
  auto freezer = LiveCgroup::Make("freezer", GroupOf("two.service"));
  if (!freezer.ok()) GTEST_SKIP() << freezer.status().message();
  StartDaemon(
      "[[tenant]]\nname = \"rich\"\n"
      "[[rule]]\ntenant = \"{unit}\"\nunit = \"*\"\n"
      "[[rule]]\ntenant = \"rich\"\ndefault = true\n");
  EXPECT_EQ(AskIn((*pids)->procs()).tenant(), "one.service");
  EXPECT_EQ(AskIn((*freezer)->procs()).tenant(), "two.service");
  const v1::WhoAmIResponse answer = AskIn(absl::StrCat((*pids)->procs(), ",", (*freezer)->procs()));
  EXPECT_EQ(answer.tenant(), absl::StrCat("user-", geteuid()));
  EXPECT_EQ(answer.rule_number(), 0u);
  EXPECT_THAT(answer.rule(), HasSubstr("; the cgroup is ambiguous (v1 "));
  EXPECT_THAT(answer.rule(), HasSubstr("v1 pids says one.service"));
  EXPECT_THAT(answer.rule(), HasSubstr("v1 freezer says two.service"));
  EXPECT_THAT(answer.rule(), HasSubstr("): billed by uid"));
  ASSERT_EQ(answer.passed_size(), 2);
  EXPECT_TRUE(answer.passed(0).ambiguous());
  EXPECT_EQ(AskIn("").tenant(), "rich");
}

}  // namespace

int RunRole(const std::string& socket, const std::string& groups, const std::string& later) {
  return AskInGroups(socket, groups, later);
}

}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--role") {
    return gpumem::RunRole(argv[2], argv[3], argv[4]);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
