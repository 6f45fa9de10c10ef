// SPDX-License-Identifier: Apache-2.0
// Which requests wait, which go first, and what ends a wait.
#include <string>
#include <vector>

#include "daemon/core/admission/testing/queue_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using LedgerQueueTest = LedgerQueueFixture;

TEST_F(LedgerQueueTest, RequestForTheLastByteFitsAndOneMoreWaits) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1000);
  EXPECT_EQ(AcquireOne(b, 24 * kGranule).fresh, true);
  const WaiterId waiter = Wait(b, 1);
  EXPECT_THAT(Admit(), IsEmpty());
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waiter));
}

TEST_F(LedgerQueueTest, RequestThatDoesNotWaitIsDeniedAtOnce) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  const absl::Status denied = ledger.admission().BeginAcquire(b, Of(1, /*waits=*/false)).status();
  ExpectDenial(denied, Denial::Cause::kCapacity, "b", "GPU-1", kGranule, kCapacity, kCapacity);
  ASSERT_THAT(DenialOf(denied)->holders, SizeIs(1));
  EXPECT_EQ(DenialOf(denied)->holders[0].tenant, "a");
  EXPECT_EQ(DenialOf(denied)->holders[0].used, kCapacity);
}

TEST_F(LedgerQueueTest, RequestAboveTheLimitIsDeniedAlthoughItWouldWait) {
  ledger.tenants().Configure({{"a", {.limit_bytes = 8 * kGranule}}}, {});
  ExpectDenial(ledger.admission().BeginAcquire(Open("a"), Of(9)).status(),
               Denial::Cause::kDeviceLimit, "a", "GPU-1", 9 * kGranule, 0, 8 * kGranule);
}

TEST_F(LedgerQueueTest, EqualRequestsAreServedByArrival) {
  const SessionId a = Open("a"), b = Open("b"), c = Open("c");
  Fill(a, 1024);
  const WaiterId first = Wait(b, 10), second = Wait(c, 10), third = Wait(b, 10);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(first, second, third));
}

TEST_F(LedgerQueueTest, HigherPriorityIsServedFirst) {
  ledger.tenants().Configure({{"low", {.priority = -1}}, {"high", {.priority = 5}}}, {});
  const SessionId a = Open("a"), low = Open("low"), middle = Open("b"), high = Open("high");
  Fill(a, 1024);
  const WaiterId last_one = Wait(low, 10), second = Wait(middle, 10), first = Wait(high, 10);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(first, second, last_one));
}

TEST_F(LedgerQueueTest, BeforeThePassAWaiterIsToldByTheNewQuotas) {
  const SessionId a = Open("a"), b = Open("b"), c = Open("c");
  Fill(a, 1000);
  const WaiterId large = Wait(b, 30), small = Wait(c, 20);  // 24 are left
  ASSERT_TRUE(ledger.admission().BlockedBy(small));
  EXPECT_EQ(ledger.admission().BlockedBy(small)->cause, Denial::Cause::kQueue);
  SetQuota("c", {.priority = 1});
  EXPECT_FALSE(ledger.admission().BlockedBy(small)) << "it goes first now";
  ASSERT_TRUE(ledger.admission().BlockedBy(large));
  EXPECT_EQ(ledger.admission().BlockedBy(large)->cause, Denial::Cause::kCapacity);
  EXPECT_THAT(Admit(), ElementsAre(small));
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(large));
}

TEST_F(LedgerQueueTest, SmallRequestsDoNotStarveALargeOne) {
  const SessionId a = Open("a"), large = Open("large"), small = Open("small");
  Fill(a, 512);
  Fill(a, 512);
  const WaiterId waits = Wait(large, 800);
  // Half of the device becomes free, and a small request would fit there.
  Release(a, {held[0].second});
  held.erase(held.begin());
  EXPECT_THAT(Admit(), IsEmpty());
  const absl::Status denied =
      ledger.admission().BeginAcquire(small, Of(300, /*waits=*/false)).status();
  ExpectDenial(denied, Denial::Cause::kQueue, "small", "GPU-1", 300 * kGranule,
               (512 + 800) * kGranule, kCapacity);
  EXPECT_EQ(DenialOf(denied)->queued_at, Denial::Cause::kCapacity);
  // Nor does it go first if it waits as well.
  const WaiterId behind = Wait(small, 224);
  EXPECT_THAT(Admit(), IsEmpty());
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waits, behind));
}

TEST_F(LedgerQueueTest, AQueueForSegmentsSaysThatItsNumbersAreCounts) {
  ledger.tenants().Configure({{"team", {.max_segments = 10}}}, {});
  const SessionId first = Open("team"), second = Open("team"), third = Open("team");
  Acquire(first, kGranule, 8);
  AcquireSpec three = Of(1);
  three.count = 3;
  const absl::StatusOr<Admission> waits = ledger.admission().BeginAcquire(second, three);
  ASSERT_TRUE(waits.ok() && waits->waiter) << waits.status();
  AcquireSpec two = Of(1, /*waits=*/false);
  two.count = 2;
  const absl::Status denied = ledger.admission().BeginAcquire(third, two).status();
  ExpectDenial(denied, Denial::Cause::kQueue, "team", "", 2, 8 + 3, 10);
  EXPECT_EQ(DenialOf(denied)->queued_at, Denial::Cause::kMaxSegments);
  EXPECT_THAT(
      std::string(denied.message()),
      HasSubstr("asked for 2 segments; with the requests ahead of it in the queue it has 11 "
                "of at most 10: "));
  EXPECT_THAT(HelpOf(denied), HasSubstr("fewer and larger segments"));
}

TEST_F(LedgerQueueTest, WaiterAtItsOwnLimitDoesNotBlockTheDevice) {
  ledger.tenants().Configure({{"small", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId small = Open("small"), other = Open("other");
  Fill(small, 8);
  const WaiterId waits = Wait(small, 8);
  EXPECT_EQ(Acquire(other, kGranule, 250).size(), 250u);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waits));
}

TEST_F(LedgerQueueTest, WaiterAtItsOwnLimitDoesNotBlockAFullDevice) {
  ledger.tenants().Configure({{"small", {.limit_bytes = 256 * kGranule}}}, {});
  const SessionId small = Open("small"), other = Open("other");
  Fill(small, 256);
  Fill(other, 640);
  const WaiterId waits = Wait(small, 192);  // 128 are left
  EXPECT_EQ(Acquire(other, kGranule, 100).size(), 100u);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waits));
}

TEST_F(LedgerQueueTest, LoweredLimitEndsAWaitThatCannotSucceed) {
  ledger.tenants().Configure({{"b", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId b = Open("b");
  Fill(b, 8);
  const WaiterId waits = Wait(b, 8);
  SetQuota("b", {.limit_bytes = 6 * kGranule});
  const auto admitted = ledger.admission().AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_EQ(admitted[0].waiter, waits);
  EXPECT_TRUE(absl::IsResourceExhausted(admitted[0].operation.status()));
  Empty();
}

TEST_F(LedgerQueueTest, CancelledWaitersLeaveTheOthersInOrder) {
  ledger.tenants().Configure({{"b", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId b = Open("b");
  Fill(b, 8);
  std::vector<WaiterId> waiters;
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(ledger.sessions().BeginCall(b).ok());
    waiters.push_back(Wait(b, 2));
  }
  for (const int gone : {2, 0, 5}) {
    EXPECT_FALSE(
        ledger.admission().EndWait(waiters[static_cast<size_t>(gone)], /*expired=*/false).ok());
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    EXPECT_THAT(Admit(), IsEmpty());
  }
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waiters[1], waiters[3], waiters[4]));
}

TEST_F(LedgerQueueTest, WaitersAreAdmittedInSlices) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  std::vector<WaiterId> waiters;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(ledger.sessions().BeginCall(b).ok());
    waiters.push_back(Wait(b, 1));
  }
  Empty();
  ledger.admission().AdmitWaiting(2);
  DestroyDoomed();
  EXPECT_THAT(ledger.admission().AdmitWaiting(2), SizeIs(2));
  EXPECT_TRUE(ledger.admission().QueueMoves());
  EXPECT_THAT(ledger.admission().AdmitWaiting(2), SizeIs(2));
  EXPECT_THAT(ledger.admission().AdmitWaiting(2), SizeIs(1));
  EXPECT_THAT(ledger.admission().AdmitWaiting(2), SizeIs(0));
}

TEST_F(LedgerQueueTest, WaitersThatExpireTogetherAllGetADenial) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  const WaiterId first = Wait(b, 10);
  EXPECT_TRUE(ledger.sessions().BeginCall(b).ok());
  const WaiterId second = Wait(b, 20);
  const std::vector<absl::Status> ends = ledger.admission().EndExpiredWaits({first, second});
  ASSERT_THAT(ends, SizeIs(2));
  ExpectDenial(ends[0], Denial::Cause::kCapacity, "b", "GPU-1", 10 * kGranule, kCapacity,
               kCapacity);
  ExpectDenial(ends[1], Denial::Cause::kCapacity, "b", "GPU-1", 20 * kGranule, kCapacity,
               kCapacity);
  EXPECT_EQ(ledger.look().GetTenant("b")->denials, 2u);
  EXPECT_THAT(*ledger.admission().ListWaiting("", ""), IsEmpty());
}

TEST_F(LedgerQueueTest, RequestThatDidNotAskToWaitStaysInFlight) {
  ledger.tenants().Configure({{"b", {.limit_bytes = 8 * kGranule, .max_in_flight = 1}}}, {});
  const SessionId b = Open("b");
  Release(b, Acquire(b, 8 * kGranule));
  const auto soon = ledger.admission().BeginAcquire(b, Of(5, /*waits=*/false));
  ASSERT_TRUE(soon.ok() && soon->waiter) << soon.status();
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.sessions().BeginCall(b)));
  EXPECT_THAT(Admit(), SizeIs(1));
}

TEST_F(LedgerQueueTest, EndedWaiterLeavesNoTrace) {
  const SessionId a = Open("a"), b = Open("b"), c = Open("c");
  Fill(a, 1024);
  const WaiterId cancelled = Wait(b, 10), expired = Wait(b, 20), dead = Wait(c, 30);
  EXPECT_EQ(ledger.look().GetTenant("b")->waiting, 2u);
  EXPECT_EQ(ledger.look().GetTenant("b")->devices[0].waited_for, 30 * kGranule);
  ASSERT_THAT(*ledger.admission().ListWaiting("", ""), SizeIs(3));
  EXPECT_EQ((*ledger.admission().ListWaiting("", ""))[2].position, 3u);
  EXPECT_EQ((*ledger.admission().ListWaiting("c", "GPU-1"))[0].position, 3u);
  EXPECT_EQ((*ledger.admission().ListWaiting("b", ""))[0].blocked_by.cause,
            Denial::Cause::kCapacity);
  EXPECT_TRUE(absl::IsNotFound(ledger.admission().ListWaiting("nobody", "").status()));

  EXPECT_FALSE(ledger.admission().EndWait(cancelled, /*expired=*/false).ok());
  EXPECT_EQ(ledger.look().GetTenant("b")->denials, 0u);
  EXPECT_FALSE(ledger.admission().EndWait(expired, /*expired=*/true).ok());
  EXPECT_EQ(ledger.look().GetTenant("b")->denials, 1u);
  ledger.endings().ProcessGone(c);
  EXPECT_TRUE(ledger.admission().QueueMoves()) << "no request waits, and one has to be answered";
  const auto admitted = ledger.admission().AdmitWaiting();
  EXPECT_FALSE(ledger.admission().QueueMoves());
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_EQ(admitted[0].waiter, dead);
  EXPECT_TRUE(absl::IsAborted(admitted[0].operation.status()));
  ledger.sessions().EndCall(c);  // answered
  EXPECT_EQ(ledger.look().GetTenant("b")->waiting, 0u);
  EXPECT_THAT(*ledger.admission().ListWaiting("", ""), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetTenant("c").status()));
  Empty();
  EXPECT_THAT(Admit(), IsEmpty());
}

TEST_F(LedgerQueueTest, WaitingRequestIsNotInFlight) {
  ledger.tenants().Configure({{"b", {.max_in_flight = 1, .max_waiting = 1}}}, {});
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  Wait(b, 10);
  ASSERT_TRUE(ledger.sessions().BeginCall(b).ok()) << "it can still release what it has";
  ExpectDenial(ledger.admission().BeginAcquire(b, Of(10)).status(), Denial::Cause::kMaxWaiting, "b",
               "", 1, 1, 1);
  Empty();
  EXPECT_THAT(Admit(), SizeIs(1));
}

TEST_F(LedgerQueueTest, DrainingRefusesWaiters) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  Wait(b, 10);
  ledger.SetDraining(true);
  const auto admitted = ledger.admission().AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(admitted[0].operation.status()));
}

TEST_F(LedgerQueueTest, RaisedLimitAdmitsAWaiter) {
  ledger.tenants().Configure({{"b", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId b = Open("b");
  Fill(b, 8);
  const WaiterId waits = Wait(b, 4);
  SetQuota("b", {.limit_bytes = 12 * kGranule});
  EXPECT_THAT(Admit(), ElementsAre(waits));
}

TEST_F(LedgerQueueTest, LoweredLimitRevokesNothing) {
  const SessionId b = Open("b");
  Fill(b, 8);
  SetQuota("b", {.limit_bytes = 4 * kGranule});
  EXPECT_EQ(Usage("b").leased, 8 * kGranule);
  ExpectDenial(ledger.admission().BeginAcquire(b, Of(1, false)).status(),
               Denial::Cause::kDeviceLimit, "b", "GPU-1", kGranule, 8 * kGranule, 4 * kGranule);
}

// --- Waiters that could reuse retained segments ---------------------------------------

// Each of them would reuse segments that its tenant retains, and is checked again when the device
// changes.
TEST_F(LedgerQueueTest, TwoWaitersThatReuseSegmentsDoNotWakeEachOtherForEver) {
  const SessionId a = Open("a"), b = Open("b"), c = Open("c");
  Release(a, Acquire(a, 100 * kGranule));
  Release(b, Acquire(b, 100 * kGranule));
  Release(c, Acquire(c, 600 * kGranule));
  ASSERT_TRUE(ledger.segments().Trim("c", "", 0).ok());  // the driver does not have it yet
  const auto wait = [&](SessionId session, uint32_t count) {
    const auto admission = ledger.admission().BeginAcquire(
        session, {.device_uuid = "GPU-1", .bytes = 100 * kGranule, .count = count, .waits = true});
    EXPECT_TRUE(admission.ok() && admission->waiter) << admission.status();
    return admission.ok() ? admission->waiter.value_or(WaiterId{}) : WaiterId{};
  };
  const WaiterId first = wait(a, 4), second = wait(b, 5);
  EXPECT_FALSE(ledger.admission().BlockedBy(first) || ledger.admission().BlockedBy(second))
      << "it is on its way";
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  // Nor does a change that serves none of them check each more than once.
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = ledger.admission().checked();
    ASSERT_TRUE(ledger.segments().Trim("", "GPU-2", 0).ok());
    Release(c, Acquire(c, kGranule, 1, "GPU-2"));
    EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
    EXPECT_LE(ledger.admission().checked() - before, 4u);
  }
  EXPECT_EQ(Usage("a").retained, 100 * kGranule) << "nothing has to be given up for them";
  EXPECT_EQ(Usage("b").retained, 100 * kGranule);
  EXPECT_THAT(Admit(), ElementsAre(first, second));
}

// The first gives up its tenant's segment and waits for the driver. Meanwhile the second is granted
// a segment of another device, and both are in one pass.
TEST_F(LedgerQueueTest, AGrantBehindAWaiterThatGaveUpASegmentLeavesThatWaiterInLine) {
  const SessionId a = Open("a"), waits = Open("a"), b = Open("b"), reuses = Open("b");
  Fill(a, 1024);
  const Operation::Item item = AcquireOne(b, kCapacity, "GPU-2");
  const WaiterId first = Wait(waits, 512);
  const auto second = ledger.admission().BeginAcquire(
      reuses, {.device_uuid = "GPU-2", .bytes = kCapacity, .waits = true});
  ASSERT_TRUE(second.ok() && second->waiter) << second.status();
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  Empty();
  Release(b, {item});
  EXPECT_THAT(Admit(), ElementsAre(*second->waiter, first));
}

// No segment is given up for a waiter that is no longer the first.
TEST_F(LedgerQueueTest, NewFirstWaiterReusesRetainedSegments) {
  ledger.tenants().Configure(
      {{"b", {.limit_bytes = 650 * kGranule, .guarantee_bytes = 500 * kGranule}}}, {});
  const SessionId b = Open("b"), other = Open("b");
  Fill(b, 300);
  const WaiterId large = Wait(b, 600), small = Wait(other, 300);
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  Empty();  // the unused guarantee covers the small one now
  EXPECT_THAT(Admit(), ElementsAre(small));
  EXPECT_TRUE(last.items.at(0).reused);
  Release(other, last.items);
  EXPECT_THAT(Admit(), ElementsAre(large));
}

}  // namespace
}  // namespace gpumemd
