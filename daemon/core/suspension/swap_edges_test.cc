// SPDX-License-Identifier: Apache-2.0
// Whom the policy asks in rarer cases: many sessions, several devices, a clock that is set back,
// and requests of operators.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "daemon/core/ledger/testing/fixture.h"
#include "daemon/core/suspension/swap_policy.h"
#include "daemon/core/suspension/testing/swap_fixture.h"

namespace gpumemd {
namespace swap_edges_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Action = SuspensionRequests::Action;
using Cause = records::SuspensionCause;

class SwapEdgesTest : public SwapFixture {
 protected:
  using SwapFixture::SwapFixture;

  Quota Idle() {
    Quota quota = Swappable();
    quota.idle_suspend = absl::Minutes(1);
    return quota;
  }
  // Suspends one of the session's leases.
  void SuspendOne(SessionId session, LeaseId lease) {
    auto begun = ledger.suspensions().Begin(session, {lease}, /*reservation=*/0);
    ASSERT_TRUE(begun.ok()) << begun.status();
    for (const Suspensions::Move& move : begun->moves) {
      ledger.suspensions().Made(move, {{.offset = 0, .bytes = move.bytes}});
      ledger.suspensions().Finish(move, /*copied=*/true);
    }
    ledger.swaps().Suspended(session);
    Settle();
  }
};

// --- Whom it asks

TEST_F(SwapEdgesTest, AGuaranteeIsServedBySessionsOfAHigherPriority) {
  SetQuota("high", Swappable(1));
  const SessionId high = OpenHolding("high", 10);
  SetQuota("sure", {.guarantee_bytes = 5 * kGranule});
  ASSERT_TRUE(Wait(OpenSession("sure"), 3));
  EXPECT_THAT(Asked(), ElementsAre(high));
}

TEST_F(SwapEdgesTest, MemoryOnAnotherDeviceDoesNotCount) {
  SetQuota("a", Swappable());
  const SessionId both = OpenHolding("a", 4);
  AcquireOne(both, 6 * kGranule, "GPU-2");
  now += absl::Seconds(1);
  const SessionId other = OpenHolding("a", 6);
  ASSERT_TRUE(Wait(OpenSession("b"), 4));
  EXPECT_THAT(Asked(), ElementsAre(both)) << "it is idle for longer";
  ASSERT_TRUE(Wait(OpenSession("b"), 6));
  EXPECT_THAT(Asked(), ElementsAre(other));
}

TEST_F(SwapEdgesTest, SessionsAreAskedWhereARevocationMakesUpTheRest) {
  SetQuota("swaps", Swappable());
  SetQuota("lends", {.priority = -1});
  SetQuota("first", {.priority = 1});
  const SessionId swaps = OpenHolding("swaps", 5), lends = OpenSession("lends");
  auto borrowed = Ask(lends, {.device_uuid = "GPU-1", .bytes = 5 * kGranule, .revocable = true});
  ASSERT_TRUE(Granted(borrowed)) << borrowed.status();
  Finish(**borrowed);
  ASSERT_TRUE(Wait(OpenSession("first"), 10));
  EXPECT_THAT(Asked(), ElementsAre(swaps));
  EXPECT_THAT(ledger.effects().revoked, IsEmpty()) << "before the session has suspended";
  Suspend(swaps);
  Pass(SwapPolicy::kPause);
  EXPECT_THAT(ledger.effects().revoked, ElementsAre(lends));
}

TEST_F(SwapEdgesTest, AWaiterIsToldThatSessionsAreAskedBeforeAnythingIsRevoked) {
  SetQuota("swaps", Swappable());
  SetQuota("lends", {.priority = -1});
  SetQuota("first", {.priority = 1});
  OpenHolding("swaps", 5);
  auto borrowed =
      Ask(OpenSession("lends"), {.device_uuid = "GPU-1", .bytes = 5 * kGranule, .revocable = true});
  ASSERT_TRUE(Granted(borrowed)) << borrowed.status();
  Finish(**borrowed);
  const std::optional<WaiterId> waiter = Wait(OpenSession("first"), 5);
  ASSERT_TRUE(waiter);
  ASSERT_EQ(Asked().size(), 1u);
  const auto waiting = ledger.admission().ListWaiting("first", "");
  ASSERT_TRUE(waiting.ok() && waiting->size() == 1) << waiting.status();
  EXPECT_THAT(waiting->at(0).blocked_by.help,
              StartsWith("sessions are asked to suspend first"));
  EXPECT_THAT(ledger.effects().revoked, IsEmpty());
  EXPECT_THAT(HelpOf(ledger.admission().EndWait(*waiter, /*expired=*/true)),
              StartsWith("sessions are asked to suspend first"));
}

class ManySessionsTest : public SwapEdgesTest {
 protected:
  ManySessionsTest() : SwapEdgesTest(/*granules=*/SwapPolicy::kMostAsked + 1) {}
};

TEST_F(ManySessionsTest, WaitersHaveAFewAskedAtATime) {
  SetQuota("a", Swappable());
  for (size_t i = 0; i <= SwapPolicy::kMostAsked; ++i) OpenHolding("a", 1);
  ASSERT_TRUE(Wait(OpenSession("b"), SwapPolicy::kMostAsked));
  const std::vector<SessionId> asked = Asked();
  ASSERT_EQ(asked.size(), SwapPolicy::kMostAsked);
  ASSERT_TRUE(Wait(OpenSession("b"), 1));
  EXPECT_THAT(Asked(), IsEmpty());
  Suspend(asked.front());
  Pass(SwapPolicy::kPause);
  EXPECT_EQ(Asked().size(), 1u);
}

TEST_F(ManySessionsTest, ForALargeRequestTheyAreAskedInParts) {
  SetQuota("a", Swappable());
  for (size_t i = 0; i <= SwapPolicy::kMostAsked; ++i) OpenHolding("a", 1);
  const std::optional<WaiterId> waiter = Wait(OpenSession("b"), SwapPolicy::kMostAsked + 1);
  ASSERT_TRUE(waiter);
  const std::vector<SessionId> first = Asked();
  ASSERT_EQ(first.size(), SwapPolicy::kMostAsked);
  Pass(SwapPolicy::kPause);
  EXPECT_THAT(Asked(), IsEmpty()) << "before one of them has answered";
  for (SessionId each : first) Suspend(each);
  Pass(SwapPolicy::kPause);
  const std::vector<SessionId> rest = Asked();
  ASSERT_EQ(rest.size(), 1u);
  Suspend(rest.front());
  EXPECT_THAT(granted, ElementsAre(*waiter));
}

class ManyAndLentTest : public SwapEdgesTest {
 protected:
  static constexpr size_t kGranules = 3 * SwapPolicy::kMostAsked + 1;

  ManyAndLentTest() : SwapEdgesTest(kGranules) {
    SetQuota("a", Swappable());
    SetQuota("lends", {.priority = -1});
    SetQuota("c", {.priority = 1});
  }
  // Fills the device: sessions that may be asked hold a granule each, and the rest is lent.
  void Fill(size_t holding) {
    for (size_t i = 0; i < holding; ++i) OpenHolding("a", 1);
    auto borrowed =
        Ask(OpenSession("lends"),
            {.device_uuid = "GPU-1", .bytes = (kGranules - holding) * kGranule, .revocable = true});
    ASSERT_TRUE(Granted(borrowed)) << borrowed.status();
    Finish(**borrowed);
  }
};

TEST_F(ManyAndLentTest, ARequestThatIsServedInPartsRevokesNothingMeanwhile) {
  Fill(/*holding=*/SwapPolicy::kMostAsked + 1);
  ASSERT_TRUE(Wait(OpenSession("c"), SwapPolicy::kMostAsked + 1));
  ASSERT_EQ(Asked().size(), SwapPolicy::kMostAsked);
  SetQuota("c", {.priority = 2});  // has it checked again
  ledger.admission().AdmitWaiting();
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_THAT(ledger.effects().revoked, IsEmpty());
}

TEST_F(ManyAndLentTest, AWaiterThatFindsTheMostAskedRevokesNothingMeanwhile) {
  Fill(/*holding=*/2 * SwapPolicy::kMostAsked);
  ASSERT_TRUE(Wait(OpenSession("b"), SwapPolicy::kMostAsked));
  const std::vector<SessionId> first = Asked();
  ASSERT_EQ(first.size(), SwapPolicy::kMostAsked);
  ASSERT_TRUE(Wait(OpenSession("c"), SwapPolicy::kMostAsked + 1));
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_THAT(ledger.effects().revoked, IsEmpty());
  Suspend(first.front());
  EXPECT_EQ(Asked().size(), 1u) << "who could not be asked before";
  EXPECT_THAT(ledger.effects().revoked, IsEmpty());
  Pass(kGrace + SwapPolicy::kPause);
  EXPECT_THAT(ledger.effects().revoked, Not(IsEmpty())) << "it has a deadline like all waiters";
}

TEST_F(ManyAndLentTest, AWaiterThatNobodyCouldHelpRevokesAtOnce) {
  Fill(/*holding=*/SwapPolicy::kMostAsked);
  ASSERT_TRUE(Wait(OpenSession("b"), SwapPolicy::kMostAsked));
  ASSERT_EQ(Asked().size(), SwapPolicy::kMostAsked);
  ASSERT_TRUE(Wait(OpenSession("c"), SwapPolicy::kMostAsked + 1));
  EXPECT_THAT(ledger.effects().revoked, Not(IsEmpty())) << "all who could are asked for another";
}

// --- Ends of requests

TEST_F(SwapEdgesTest, ASessionThatSuspendsAPartIsStillAsked) {
  SetQuota("a", Swappable());
  const SessionId a = OpenServing("a");
  const LeaseId first = AcquireOne(a, 5 * kGranule).lease,
                second = AcquireOne(a, 5 * kGranule).lease;
  ASSERT_TRUE(Wait(OpenSession("b"), 8));
  ASSERT_THAT(Asked(), ElementsAre(a));
  SuspendOne(a, first);
  EXPECT_NE(ledger.suspension_requests().Find(a), nullptr);
  EXPECT_EQ(counts().suspended, 0u);
  SuspendOne(a, second);
  EXPECT_EQ(ledger.suspension_requests().Find(a), nullptr);
  EXPECT_EQ(counts().suspended, 1u);
  EXPECT_EQ(granted.size(), 1u);
}

TEST_F(SwapEdgesTest, ManyRequestsEndInSteps) {
  SetQuota("a", Idle());
  constexpr size_t kOnFirst = 10, kOnSecond = 60;  // together more than one tick ends
  for (size_t i = 0; i < kOnFirst; ++i) OpenHolding("a", 1);
  for (size_t i = 0; i < kOnSecond; ++i) AcquireOne(OpenServing("a"), kGranule, "GPU-2");
  Pass(absl::Minutes(1));
  Pass(absl::ZeroDuration());
  ASSERT_EQ(Asked().size(), kOnFirst + kOnSecond);
  Pass(kGrace);
  EXPECT_GT(counts().ignored, 0u);
  EXPECT_LT(counts().ignored, kOnFirst + kOnSecond);
  EXPECT_LE(ledger.admission().NextSwap(), now) << "the rest is due";
  Pass(absl::ZeroDuration());
  EXPECT_EQ(counts().ignored, kOnFirst + kOnSecond);
}

// --- Operators

TEST_F(SwapEdgesTest, AnOperatorsRequestForTheSameLeavesThePolicys) {
  SetQuota("a", Swappable());
  const SessionId a = OpenHolding("a", 5);
  OpenHolding("a", 5);
  ASSERT_TRUE(Wait(OpenSession("b"), 3));
  ASSERT_THAT(Asked(), ElementsAre(a));
  const auto number =
      ledger.suspension_requests().Begin(a, Action::kSuspend, now + absl::Seconds(5));
  ASSERT_TRUE(number.ok()) << number.status();
  Pass(SwapPolicy::kPause);
  EXPECT_THAT(Asked(), IsEmpty()) << "no other is asked in its place";
  EXPECT_EQ(counts().gone, 0u);
  Suspend(a);
  EXPECT_EQ(counts().suspended, 1u);
  EXPECT_EQ(granted.size(), 1u);
  ASSERT_NE(ledger.suspension_requests().Find(a), nullptr);
  EXPECT_EQ(ledger.suspension_requests().Find(a)->number, *number) << "the operator ends it";
}

TEST_F(SwapEdgesTest, AnOperatorsRequestWhoseTimeIsOverIsReplaced) {
  SetQuota("a", Swappable());
  const SessionId a = OpenHolding("a", 10);
  const auto number =
      ledger.suspension_requests().Begin(a, Action::kResume, now + absl::Seconds(5));
  ASSERT_TRUE(number.ok()) << number.status();
  now += absl::Seconds(5);
  ASSERT_TRUE(Wait(OpenSession("b"), 1));
  EXPECT_THAT(Asked(), ElementsAre(a));
  EXPECT_EQ(ledger.suspension_requests().Find(a)->cause, Cause::kWaiter);
}

// --- The clock, and the end of the daemon

TEST_F(SwapEdgesTest, AReportAfterTheClockWasSetBackCounts) {
  SetQuota("a", Swappable());
  const SessionId a = OpenHolding("a", 2);
  now -= absl::Minutes(10);
  ledger.swaps().Reported(a);
  EXPECT_EQ(ledger.state().sessions.at(a)->active, now);
}

TEST_F(SwapEdgesTest, WaitersAreCheckedAfterTheClockWasSetBack) {
  SetQuota("a", Swappable());
  const SessionId ignores = OpenHolding("a", 4), leaves = OpenHolding("a", 3),
                  third = OpenHolding("a", 3);
  ASSERT_TRUE(Wait(OpenSession("b"), 3));
  ASSERT_THAT(Asked(), ElementsAre(ignores));
  Pass(kGrace);
  ASSERT_THAT(Asked(), ElementsAre(leaves));
  now -= absl::Hours(1);
  ledger.suspension_requests().RemoveWatch(leaves);
  Pass(absl::ZeroDuration());
  EXPECT_THAT(Asked(), ElementsAre(third)) << "and not in an hour";
}

TEST_F(SwapEdgesTest, AReportOfASessionThatHasEndedIsIgnored) {
  ledger.swaps().Reported(SessionId{99});
  ledger.swaps().Active(SessionId{99});
  EXPECT_THAT(ledger.state().swaps_changed, IsEmpty());
}

TEST_F(SwapEdgesTest, ADaemonThatEndsAsksNoIdleSession) {
  SetQuota("a", Idle());
  const SessionId a = OpenHolding("a", 1);
  ledger.Close();
  Pass(absl::Minutes(1));
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_EQ(ledger.suspension_requests().Find(a), nullptr);
  EXPECT_EQ(ledger.admission().NextSwap(), absl::InfiniteFuture());
}

using SwapWithoutTierTest = LedgerFixture;

TEST_F(SwapWithoutTierTest, NoIdleSessionIsAsked) {
  SetQuota("a", {.swappable = true, .idle_suspend = absl::Minutes(1)});
  const SessionId a = OpenSession("a");
  ledger.suspension_requests().AddWatch(a);
  ledger.swaps().Active(a);
  AcquireOne(a, kGranule);
  ledger.swaps().Refresh();
  ASSERT_EQ(ledger.admission().NextSwap(), now + absl::Minutes(1));
  now += absl::Minutes(1);
  ledger.admission().RunSwaps();
  EXPECT_THAT(ledger.effects().asked, IsEmpty());
  EXPECT_EQ(ledger.suspension_requests().Find(a), nullptr);
  EXPECT_EQ(ledger.swaps().counts().asked_idle, 0u);
  EXPECT_EQ(ledger.admission().NextSwap(), absl::InfiniteFuture());
}

}  // namespace swap_edges_test
}  // namespace gpumemd
