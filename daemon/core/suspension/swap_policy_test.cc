// SPDX-License-Identifier: Apache-2.0
// Which sessions are asked to suspend for a request that waits, and when.
#include "daemon/core/suspension/swap_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "daemon/core/suspension/testing/swap_fixture.h"

namespace gpumemd {
namespace swap_policy_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Cause = records::SuspensionCause;
using SwapPolicyTest = SwapFixture;

TEST_F(SwapPolicyTest, ASessionIsAskedForARequestThatWaits) {
  SetQuota("a", Swappable());
  const SessionId a = OpenHolding("a", 10), b = OpenSession("b");
  EXPECT_TRUE(Wait(b, 4));
  EXPECT_THAT(Asked(), ElementsAre(a));
  const auto* request = ledger.suspension_requests().Find(a);
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->action, SuspensionRequests::Action::kSuspend);
  EXPECT_EQ(request->cause, Cause::kWaiter);
  EXPECT_EQ(request->until, now + kGrace);
  // That session covers this request, too.
  EXPECT_TRUE(Wait(b, 6));
  Pass(absl::Seconds(1));
  EXPECT_THAT(Asked(), IsEmpty());
  const std::vector<LeaseId> leases = Suspend(a);
  EXPECT_EQ(granted.size(), 2u);
  EXPECT_EQ(ledger.suspension_requests().Find(a), nullptr);
  EXPECT_EQ(counts().asked_for_waiters, 1u);
  EXPECT_EQ(counts().suspended, 1u);
  // It comes back when the others have released theirs. They are not swappable.
  EXPECT_TRUE(Wait(a, {.resumes = leases}));
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(SwapPolicyTest, WhoMayBeAsked) {
  SetQuota("a", Swappable());
  OpenHolding("a", 4, /*swappable=*/false);
  const SessionId other = OpenHolding("other", 4), deaf = OpenSession("a"),
                  offers = OpenSession("other");
  AcquireOne(deaf, kGranule);
  AcquireOne(offers, kGranule);
  const SessionId b = OpenSession("b");
  EXPECT_TRUE(Wait(b, 4));
  EXPECT_TRUE(Wait(b, 1));
  EXPECT_THAT(Asked(), IsEmpty());
  // One that offers it by itself does not suffice.
  ledger.suspension_requests().AddWatch(offers, true);
  Pass(absl::Seconds(1));
  EXPECT_THAT(Asked(), IsEmpty());
  ledger.suspension_requests().AddWatch(deaf);
  ledger.tenants().OverrideQuota("other", {Swappable()});
  Pass(absl::Seconds(1));
  EXPECT_THAT(Asked(), ElementsAre(other, deaf));
}

TEST_F(SwapPolicyTest, TheLowestPriorityThenTheLongestIdleThenTheLargestGoesFirst) {
  SetQuota("low", Swappable(-1));
  SetQuota("a", Swappable());
  const SessionId idle = OpenHolding("a", 2);
  now += absl::Seconds(1);
  const SessionId small = OpenHolding("a", 1), large = OpenHolding("a", 3);
  now += absl::Seconds(1);
  const SessionId low = OpenHolding("low", 2);
  const SessionId b = OpenSession("b");
  AcquireOne(b, 2 * kGranule);
  std::vector<std::vector<SessionId>> turns;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(Wait(OpenSession("b"), i == 3 ? 1 : i == 2 ? 3 : 2));
    turns.push_back(Asked());
  }
  EXPECT_THAT(turns, ElementsAre(ElementsAre(low), ElementsAre(idle), ElementsAre(large),
                                 ElementsAre(small)));
}

TEST_F(SwapPolicyTest, NoneIsAskedWhereAllDoNotSuffice) {
  SetQuota("a", Swappable());
  OpenHolding("a", 4);
  AcquireOne(OpenSession("b"), 6 * kGranule);
  EXPECT_TRUE(Wait(OpenSession("c"), 5));
  EXPECT_THAT(Asked(), IsEmpty());
  Pass(absl::Hours(1));
  EXPECT_THAT(Asked(), IsEmpty());
  // The waiter before it claims that memory.
  EXPECT_TRUE(Wait(OpenSession("c"), 4));
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(SwapPolicyTest, AHigherPriorityIsNotAsked) {
  SetQuota("high", Swappable(1));
  const SessionId high = OpenHolding("high", 10);
  EXPECT_TRUE(Wait(OpenSession("b"), 1));
  EXPECT_THAT(Asked(), IsEmpty());
  SetQuota("equal", {.priority = 1});
  EXPECT_TRUE(Wait(OpenSession("equal"), 1));
  EXPECT_THAT(Asked(), ElementsAre(high));
}

TEST_F(SwapPolicyTest, MemoryWithinAGuaranteeIsNotAskedFor) {
  Quota quota = Swappable();
  quota.guarantee_bytes = 5 * kGranule;
  SetQuota("a", quota);
  const SessionId first = OpenHolding("a", 5), second = OpenHolding("a", 2);
  OpenHolding("c", 3);
  const auto other = Wait(OpenSession("b"), 5);
  ASSERT_TRUE(other);
  Pass(absl::Seconds(1));
  EXPECT_THAT(Asked(), IsEmpty()) << "two granules are above the guarantee";
  ledger.admission().EndWait(*other, /*expired=*/false).IgnoreError();
  // But by the tenant itself.
  const auto waiter = Wait(second, 5);
  ASSERT_TRUE(waiter);
  EXPECT_THAT(Asked(), ElementsAre(first));
  Suspend(first);
  EXPECT_THAT(granted, ElementsAre(*waiter));
}

TEST_F(SwapPolicyTest, NoMoreAreAskedThanNeeded) {
  SetQuota("a", Swappable());
  OpenHolding("a", 2);
  now += absl::Seconds(1);
  const SessionId large = OpenHolding("a", 6);
  AcquireOne(OpenSession("b"), 2 * kGranule);
  ASSERT_TRUE(Wait(OpenSession("b"), 5));
  EXPECT_THAT(Asked(), ElementsAre(large)) << "the longer idle one would not suffice";
}

TEST_F(SwapPolicyTest, AtItsOwnLimitATenantTakesTurns) {
  Quota quota = Swappable();
  quota.limit_bytes = 4 * kGranule;
  SetQuota("a", quota);
  SetQuota("other", Swappable());
  OpenHolding("other", 2);
  const SessionId first = OpenHolding("a", 4), second = OpenServing("a");
  EXPECT_TRUE(Wait(second, 3));
  EXPECT_THAT(Asked(), ElementsAre(first));
  Suspend(first);
  EXPECT_EQ(granted.size(), 1u);
}

TEST_F(SwapPolicyTest, ASessionStaysForItsMinimumResidence) {
  SetQuota("a", Swappable(0, absl::Seconds(10)));
  const SessionId a = OpenHolding("a", 10);
  now += absl::Seconds(4);
  EXPECT_TRUE(Wait(OpenSession("b"), 4));
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_EQ(ledger.admission().NextSwap(), now + absl::Seconds(6));
  Pass(absl::Seconds(5));
  EXPECT_THAT(Asked(), IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_THAT(Asked(), ElementsAre(a));
}

TEST_F(SwapPolicyTest, NothingIsRevokedWhileSessionsAreAsked) {
  SetQuota("swaps", Swappable());
  SetQuota("lends", {.priority = -1});
  SetQuota("first", {.priority = 1});
  const SessionId swaps = OpenHolding("swaps", 5), lends = OpenSession("lends");
  auto borrowed = Ask(lends, {.device_uuid = "GPU-1", .bytes = 5 * kGranule, .revocable = true});
  ASSERT_TRUE(Granted(borrowed));
  Finish(**borrowed);
  const auto waiter = Wait(OpenSession("first"), 5);
  ASSERT_TRUE(waiter);
  EXPECT_THAT(Asked(), ElementsAre(swaps));
  Pass(kGrace - absl::Seconds(1));
  EXPECT_THAT(ledger.effects().revoked, IsEmpty());
  Suspend(swaps);
  EXPECT_THAT(granted, ElementsAre(*waiter));
  EXPECT_THAT(ledger.effects().revoked, IsEmpty());
}

TEST_F(SwapPolicyTest, SessionsThatIgnoreRequestsDelayARevocationOnce) {
  SetQuota("swaps", Swappable());
  SetQuota("lends", {.priority = -1});
  SetQuota("first", {.priority = 1});
  std::vector<SessionId> deaf;
  for (int i = 0; i < 5; ++i) deaf.push_back(OpenHolding("swaps", 1));
  const SessionId lends = OpenSession("lends");
  auto borrowed = Ask(lends, {.device_uuid = "GPU-1", .bytes = 5 * kGranule, .revocable = true});
  ASSERT_TRUE(Granted(borrowed));
  Finish(**borrowed);
  ASSERT_TRUE(Wait(OpenSession("first"), 1));
  EXPECT_EQ(Asked().size(), 1u);
  const absl::Time began = now;
  while (ledger.effects().revoked.empty() && now < began + absl::Hours(1)) {
    Pass(SwapPolicy::kPause);
  }
  EXPECT_THAT(ledger.effects().revoked, ElementsAre(lends));
  EXPECT_LE(now - began, kGrace + 2 * SwapPolicy::kPause);
  EXPECT_EQ(counts().ignored, 1u);
}

TEST_F(SwapPolicyTest, WhoIgnoresARequestIsNotAskedForAWhile) {
  SetQuota("a", Swappable());
  const SessionId a = OpenHolding("a", 5), other = OpenHolding("a", 5);
  ASSERT_TRUE(Wait(OpenSession("b"), 5));
  EXPECT_THAT(Asked(), ElementsAre(a));
  Pass(kGrace);
  EXPECT_EQ(counts().ignored, 1u);
  EXPECT_THAT(Asked(), ElementsAre(other));
  Pass(kGrace);
  EXPECT_THAT(Asked(), IsEmpty());
  Pass(kBackOff - kGrace);
  EXPECT_THAT(Asked(), ElementsAre(a));
}

TEST_F(SwapPolicyTest, ASessionThatLeavesIsNoLongerExpected) {
  SetQuota("a", Swappable());
  const SessionId a = OpenHolding("a", 5), b = OpenHolding("a", 5);
  ASSERT_TRUE(Wait(OpenSession("b"), 3));
  EXPECT_THAT(Asked(), ElementsAre(a));
  // Another watch does not make it a candidate again.
  ledger.suspension_requests().RemoveWatch(a);
  ledger.swaps().Refresh();
  ledger.suspension_requests().AddWatch(a);
  Pass(SwapPolicy::kPause);
  EXPECT_THAT(Asked(), ElementsAre(b));
  ledger.endings().SocketClosed(b);
  Pass(SwapPolicy::kPause);
  EXPECT_EQ(counts().gone, 2u);
  EXPECT_THAT(Asked(), IsEmpty());
  ledger.endings().ProcessGone(b);
  Settle();
  EXPECT_EQ(granted.size(), 1u);
}

TEST_F(SwapPolicyTest, AnOperatorsRequestGoesFirst) {
  SetQuota("a", Swappable());
  const SessionId a = OpenHolding("a", 10);
  const auto number = ledger.suspension_requests().Begin(a, SuspensionRequests::Action::kResume,
                                                         now + absl::Seconds(5));
  ASSERT_TRUE(number.ok()) << number.status();
  ASSERT_TRUE(Wait(OpenSession("b"), 1));
  EXPECT_THAT(Asked(), IsEmpty());
  ledger.suspension_requests().End(a, *number);
  Pass(SwapPolicy::kPause);
  EXPECT_THAT(Asked(), ElementsAre(a)) << "after it, the policy asks";
}

// A request of an operator for something else replaces that of the policy, which asks others at
// once.
TEST_F(SwapPolicyTest, AnOperatorsRequestForSomethingElseReplacesThePolicys) {
  SetQuota("a", Swappable());
  const SessionId a = OpenHolding("a", 5), b = OpenHolding("a", 5);
  ASSERT_TRUE(Wait(OpenSession("b"), 3));
  ASSERT_THAT(Asked(), ElementsAre(a));
  const auto number = ledger.suspension_requests().Begin(a, SuspensionRequests::Action::kResume,
                                                         now + absl::Seconds(5));
  ASSERT_TRUE(number.ok()) << number.status();
  ledger.swaps().Refresh();
  EXPECT_EQ(counts().gone, 1u);
  Pass(SwapPolicy::kPause);
  EXPECT_THAT(Asked(), ElementsAre(b));
  EXPECT_EQ(ledger.suspension_requests().Find(a)->number, *number) << "the operator's stands";
  ledger.suspension_requests().End(a, *number);
  Pass(kGrace);
  EXPECT_EQ(counts().ignored, 1u) << "b's; a has ignored nothing";
}

// Who does not wait gets what can be revoked, and is not delayed by sessions that ignore requests.
TEST_F(SwapPolicyTest, ARequestThatDoesNotWaitAsksNobody) {
  SetQuota("a", Swappable());
  SetQuota("sure", {.guarantee_bytes = 5 * kGranule});
  const SessionId lender = OpenSession("lender");
  auto lent = Ask(lender, {.device_uuid = "GPU-1", .bytes = 5 * kGranule, .revocable = true});
  ASSERT_TRUE(Granted(lent)) << lent.status();
  Finish(**lent);
  OpenHolding("a", 5);
  auto admission = ledger.admission().BeginAcquire(OpenSession("sure"),
                                                   {.device_uuid = "GPU-1", .bytes = 5 * kGranule});
  ASSERT_TRUE(admission.ok() && admission->waiter) << admission.status();
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(lender));
}

TEST_F(SwapPolicyTest, IdleSessionsAreAskedAFewAtATime) {
  Quota quota = Swappable();
  quota.idle_suspend = absl::Minutes(1);
  SetQuota("a", quota);
  for (size_t i = 0; i < SwapPolicy::kMostAsked + 10; ++i) {
    AcquireOne(OpenServing("a"), kGranule, "GPU-2");
  }
  Pass(absl::Minutes(1));
  const std::vector<SessionId> asked = Asked();
  EXPECT_EQ(asked.size(), SwapPolicy::kMostAsked);
  Pass(SwapPolicy::kPause);
  EXPECT_THAT(Asked(), IsEmpty());
  Suspend(asked.front());
  Pass(SwapPolicy::kPause);
  EXPECT_EQ(Asked().size(), 1u);
}

TEST_F(SwapPolicyTest, ADrainThatIsTakenBackLeavesNobodyOut) {
  Quota quota = Swappable();
  quota.idle_suspend = absl::Minutes(10);
  SetQuota("a", quota);
  const SessionId a = OpenHolding("a", 1), b = OpenHolding("a", 1);
  const auto number = ledger.suspension_requests().Begin(b, SuspensionRequests::Action::kResume,
                                                         now + absl::Minutes(11));
  ASSERT_TRUE(number.ok()) << number.status();
  ledger.SetDraining(true);
  Pass(absl::Minutes(10));
  EXPECT_THAT(Asked(), ElementsAre(a)) << "what is suspended can be resumed in a drain, too";
  ledger.SetDraining(false);
  Pass(absl::Minutes(2));
  EXPECT_THAT(Asked(), ElementsAre(b)) << "the operator's request is over";
}

TEST_F(SwapPolicyTest, ARevocableRequestAsksNobody) {
  SetQuota("a", Swappable());
  OpenHolding("a", 10);
  ASSERT_TRUE(
      Wait(OpenSession("b"), {.device_uuid = "GPU-1", .bytes = kGranule, .revocable = true}));
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(SwapPolicyTest, EqualsTakeTurns) {
  SetQuota("a", Swappable(0, absl::Seconds(10)));
  SetQuota("b", Swappable(0, absl::Seconds(10)));
  const SessionId sessions[] = {OpenHolding("a", 10), OpenServing("b")};
  std::vector<LeaseId> leases[2];
  for (int turn = 0; turn < 20; ++turn) {
    const SessionId runs = sessions[turn % 2], comes = sessions[(turn + 1) % 2];
    auto& suspended = leases[(turn + 1) % 2];
    const auto waiter = suspended.empty() ? Wait(comes, 10) : Wait(comes, {.resumes = suspended});
    ASSERT_TRUE(waiter) << turn;
    Pass(absl::Seconds(9));
    ASSERT_THAT(Asked(), IsEmpty()) << turn;
    Pass(absl::Seconds(1));
    ASSERT_THAT(Asked(), ElementsAre(runs)) << turn;
    leases[turn % 2] = Suspend(runs);
    ASSERT_THAT(granted, ElementsAre(*waiter)) << turn;
    granted.clear();
  }
  EXPECT_EQ(counts().suspended, 20u);
  EXPECT_EQ(counts().ignored, 0u);
}

TEST_F(SwapPolicyTest, AnIdleSessionIsAskedOnce) {
  Quota quota = Swappable();
  quota.idle_suspend = absl::Minutes(5);
  SetQuota("a", quota);
  const SessionId a = OpenHolding("a", 2);
  Pass(absl::Minutes(4));
  ledger.swaps().Reported(a);
  ledger.swaps().Refresh();
  EXPECT_EQ(ledger.admission().NextSwap(), now + absl::Minutes(5));
  Pass(absl::Minutes(4));
  EXPECT_THAT(Asked(), IsEmpty());
  Pass(absl::Minutes(1));
  EXPECT_THAT(Asked(), ElementsAre(a));
  EXPECT_EQ(ledger.suspension_requests().Find(a)->cause, Cause::kIdle);
  Pass(absl::Hours(1));
  EXPECT_EQ(counts().ignored, 1u);
  EXPECT_THAT(Asked(), IsEmpty()) << "once in an idle time";
  ledger.swaps().Reported(a);
  Pass(absl::Minutes(5));
  EXPECT_THAT(Asked(), ElementsAre(a));
  Suspend(a);
  Pass(absl::Hours(1));
  EXPECT_THAT(Asked(), IsEmpty()) << "it has nothing on the device";
  EXPECT_EQ(counts().asked_idle, 2u);
}

TEST_F(SwapPolicyTest, AFloodOfReportsChangesNothing) {
  SetQuota("a", Swappable());
  const SessionId a = OpenHolding("a", 2);
  now += absl::Seconds(2);
  ledger.swaps().Reported(a);
  const absl::Time reported = now;
  ledger.swaps().Refresh();
  for (int i = 0; i < 1000; ++i) {
    now += absl::Microseconds(900);
    ledger.swaps().Reported(a);
  }
  EXPECT_EQ(ledger.state().sessions.at(a)->active, reported);
  EXPECT_THAT(ledger.state().swaps_changed, IsEmpty());
}

}  // namespace swap_policy_test
}  // namespace gpumemd
