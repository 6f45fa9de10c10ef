// Which requests wait, which go first, and guarantees.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Denial = Denial;

class LedgerQueueTest : public LedgerFixture {
 protected:
  static AcquireSpec Of(uint64_t granules, bool waits = true) {
    return {.device_uuid = "GPU-1", .bytes = granules * kGranule, .waits = waits};
  }
  SessionId Open(absl::string_view tenant) {
    const SessionId session = OpenSession(tenant);
    EXPECT_TRUE(ledger.BeginCall(session).ok());
    return session;
  }
  // Returns the waiter for a request of so many granules.
  WaiterId Wait(SessionId session, uint64_t granules) {
    const absl::StatusOr<Admission> admission = ledger.BeginAcquire(session, Of(granules));
    EXPECT_TRUE(admission.ok()) << admission.status();
    EXPECT_TRUE(admission.ok() && admission->waiter) << "granted";
    return admission.ok() ? admission->waiter.value_or(WaiterId{}) : WaiterId{};
  }
  // Returns the waiters that are granted or refused now, and commits the grants. Gives doomed
  // segments back to the driver.
  std::vector<WaiterId> Admit() {
    std::vector<WaiterId> granted;
    while (true) {
      const std::vector<Ledger::Admitted> admitted = ledger.AdmitWaiting();
      for (const Ledger::Admitted& each : admitted) {
        EXPECT_TRUE(each.operation.ok()) << each.operation.status();
        if (!each.operation.ok()) continue;
        granted.push_back(each.waiter);
        EXPECT_TRUE(ledger.Commit(*each.operation).ok());
        last = *each.operation;
      }
      EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
      if (DestroyDoomed().empty() && admitted.empty()) return granted;
    }
  }
  void Fill(SessionId session, uint64_t granules) {
    held.emplace_back(session, AcquireOne(session, granules * kGranule));
  }
  void Empty() {
    for (const auto& [session, item] : held) Release(session, {item});
    held.clear();
  }

  std::vector<std::pair<SessionId, Operation::Item>> held;
  Operation last;
};

TEST_F(LedgerQueueTest, TheLastByteFitsAndOneMoreWaits) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1000);
  EXPECT_EQ(AcquireOne(b, 24 * kGranule).fresh, true);
  const WaiterId waiter = Wait(b, 1);
  EXPECT_THAT(Admit(), IsEmpty());
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waiter));
}

TEST_F(LedgerQueueTest, WithoutWaitingItIsDeniedAtOnce) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  const absl::Status denied = ledger.BeginAcquire(b, Of(1, /*waits=*/false)).status();
  ExpectDenial(denied, Denial::Cause::kCapacity, "b", "GPU-1", kGranule, kCapacity, kCapacity);
  ASSERT_THAT(DenialOf(denied)->holders, SizeIs(1));
  EXPECT_EQ(DenialOf(denied)->holders[0].tenant, "a");
  EXPECT_EQ(DenialOf(denied)->holders[0].used, kCapacity);
}

TEST_F(LedgerQueueTest, WhatNobodyCanMakeRoomForIsDeniedThoughItWouldWait) {
  ledger.Configure({{"a", {.limit_bytes = 8 * kGranule}}}, {});
  ExpectDenial(ledger.BeginAcquire(Open("a"), Of(9)).status(), Denial::Cause::kDeviceLimit, "a",
               "GPU-1", 9 * kGranule, 0, 8 * kGranule);
}

TEST_F(LedgerQueueTest, ByArrivalAmongEquals) {
  const SessionId a = Open("a"), b = Open("b"), c = Open("c");
  Fill(a, 1024);
  const WaiterId first = Wait(b, 10), second = Wait(c, 10), third = Wait(b, 10);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(first, second, third));
}

TEST_F(LedgerQueueTest, TheHigherPriorityFirst) {
  ledger.Configure({{"low", {.priority = -1}}, {"high", {.priority = 5}}}, {});
  const SessionId a = Open("a"), low = Open("low"), middle = Open("b"), high = Open("high");
  Fill(a, 1024);
  const WaiterId last_one = Wait(low, 10), second = Wait(middle, 10), first = Wait(high, 10);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(first, second, last_one));
}

TEST_F(LedgerQueueTest, WhoIsBelowItsGuaranteeGoesBeforeEveryPriority) {
  ledger.Configure({{"high", {.priority = 5}}, {"owner", {.guarantee_bytes = 8 * kGranule}}}, {});
  const SessionId high = Open("high"), owner = Open("owner"), a = Open("a");
  Fill(a, 1016);
  const WaiterId borrows = Wait(high, 1015);
  // Guaranteed memory is free: the request does not wait at all.
  Fill(owner, 8);
  const WaiterId over = Wait(owner, 1);
  ledger.Configure({{"high", {.priority = 5}}, {"owner", {.guarantee_bytes = 9 * kGranule}}}, {});
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(over, borrows));
}

TEST_F(LedgerQueueTest, SmallOnesDoNotStarveALargeOne) {
  const SessionId a = Open("a"), large = Open("large"), small = Open("small");
  Fill(a, 512);
  Fill(a, 512);
  const WaiterId waits = Wait(large, 800);
  // Half of the device becomes free, and a small request would fit there.
  Release(a, {held[0].second});
  held.erase(held.begin());
  EXPECT_THAT(Admit(), IsEmpty());
  const absl::Status denied = ledger.BeginAcquire(small, Of(300, /*waits=*/false)).status();
  ExpectDenial(denied, Denial::Cause::kQueue, "small", "GPU-1", 300 * kGranule,
               (512 + 800) * kGranule, kCapacity);
  EXPECT_THAT(HelpOf(denied), HasSubstr("wait for it, too"));
  // Nor does it go first if it waits as well.
  const WaiterId behind = Wait(small, 224);
  EXPECT_THAT(Admit(), IsEmpty());
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waits, behind));
}

TEST_F(LedgerQueueTest, WhoWaitsForItselfKeepsNobodyFromTheDevice) {
  ledger.Configure({{"small", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId small = Open("small"), other = Open("other");
  Fill(small, 8);
  const WaiterId waits = Wait(small, 8);
  EXPECT_EQ(Acquire(other, kGranule, 250).size(), 250u);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waits));
}

TEST_F(LedgerQueueTest, NorWhereTheDeviceHasTooLittleForItAsWell) {
  ledger.Configure({{"small", {.limit_bytes = 256 * kGranule}}}, {});
  const SessionId small = Open("small"), other = Open("other");
  Fill(small, 256);
  Fill(other, 640);
  const WaiterId waits = Wait(small, 192);  // 128 are left
  EXPECT_EQ(Acquire(other, kGranule, 100).size(), 100u);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waits));
}

TEST_F(LedgerQueueTest, WhatGuaranteesAloneMakeImpossibleIsNotWaitedFor) {
  ledger.Configure({{"owner", {.guarantee_bytes = 700 * kGranule}}}, {});
  const absl::Status denied = ledger.BeginAcquire(Open("b"), Of(400)).status();
  EXPECT_EQ(DenialOf(denied)->cause, Denial::Cause::kGuarantees) << denied;
  // The owner itself can have more than that.
  const SessionId owner = Open("owner");
  Fill(owner, 1000);
  Empty();
}

TEST_F(LedgerQueueTest, ALowerLimitEndsAWaitThatHasBecomeUseless) {
  ledger.Configure({{"b", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId b = Open("b");
  Fill(b, 8);
  const WaiterId waits = Wait(b, 8);
  SetQuota("b", {.limit_bytes = 6 * kGranule});
  const auto admitted = ledger.AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_EQ(admitted[0].waiter, waits);
  EXPECT_TRUE(absl::IsResourceExhausted(admitted[0].operation.status()));
  Empty();
}

// Each of them would reuse segments that its tenant retains, and is checked again when the device
// changes.
TEST_F(LedgerQueueTest, TwoThatWouldReuseSegmentsAreNotJudgedInTurnForEver) {
  const SessionId a = Open("a"), b = Open("b"), c = Open("c");
  Release(a, Acquire(a, 100 * kGranule));
  Release(b, Acquire(b, 100 * kGranule));
  Release(c, Acquire(c, 600 * kGranule));
  ASSERT_TRUE(ledger.Trim("c", "", 0).ok());  // the driver does not have it yet
  const auto wait = [&](SessionId session, uint32_t count) {
    const auto admission = ledger.BeginAcquire(
        session, {.device_uuid = "GPU-1", .bytes = 100 * kGranule, .count = count, .waits = true});
    EXPECT_TRUE(admission.ok() && admission->waiter) << admission.status();
    return admission.ok() ? admission->waiter.value_or(WaiterId{}) : WaiterId{};
  };
  const WaiterId first = wait(a, 4), second = wait(b, 5);
  EXPECT_FALSE(ledger.BlockedBy(first) || ledger.BlockedBy(second)) << "it is on its way";
  EXPECT_THAT(ledger.AdmitWaiting(), IsEmpty());
  // Nor does a change that serves none of them check each more than once.
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = ledger.judged();
    ASSERT_TRUE(ledger.Trim("", "GPU-2", 0).ok());
    Release(c, Acquire(c, kGranule, 1, "GPU-2"));
    EXPECT_THAT(ledger.AdmitWaiting(), IsEmpty());
    EXPECT_LE(ledger.judged() - before, 4u);
  }
  EXPECT_EQ(Usage("a").retained, 100 * kGranule) << "nothing has to be given up for them";
  EXPECT_EQ(Usage("b").retained, 100 * kGranule);
  EXPECT_THAT(Admit(), ElementsAre(first, second));
}

TEST_F(LedgerQueueTest, ThoseWhoGoLeaveTheOthersInOrder) {
  ledger.Configure({{"b", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId b = Open("b");
  Fill(b, 8);
  std::vector<WaiterId> waiters;
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(ledger.BeginCall(b).ok());
    waiters.push_back(Wait(b, 2));
  }
  for (const int gone : {2, 0, 5}) {
    EXPECT_FALSE(ledger.EndWait(waiters[static_cast<size_t>(gone)], /*expired=*/false).ok());
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    EXPECT_THAT(Admit(), IsEmpty());
  }
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waiters[1], waiters[3], waiters[4]));
}

// No segment is given up for a waiter that is no longer the first.
TEST_F(LedgerQueueTest, WhoBecomesTheFirstReusesWhatIsRetained) {
  ledger.Configure({{"b", {.limit_bytes = 650 * kGranule, .guarantee_bytes = 500 * kGranule}}}, {});
  const SessionId b = Open("b"), other = Open("b");
  Fill(b, 300);
  const WaiterId large = Wait(b, 600), small = Wait(other, 300);
  EXPECT_THAT(ledger.AdmitWaiting(), IsEmpty());
  Empty();  // the unused guarantee covers the small one now
  EXPECT_THAT(Admit(), ElementsAre(small));
  EXPECT_TRUE(last.items.at(0).reused);
  Release(other, last.items);
  EXPECT_THAT(Admit(), ElementsAre(large));
}

TEST_F(LedgerQueueTest, ManyAreLetInAFewAtATime) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  std::vector<WaiterId> waiters;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(ledger.BeginCall(b).ok());
    waiters.push_back(Wait(b, 1));
  }
  Empty();
  ledger.AdmitWaiting(2);
  DestroyDoomed();
  EXPECT_THAT(ledger.AdmitWaiting(2), SizeIs(2));
  EXPECT_TRUE(ledger.QueueMoves());
  EXPECT_THAT(ledger.AdmitWaiting(2), SizeIs(2));
  EXPECT_THAT(ledger.AdmitWaiting(2), SizeIs(1));
  EXPECT_THAT(ledger.AdmitWaiting(2), SizeIs(0));
}

// --- What a change costs --------------------------------------------------------------

class ManyWaitersTest : public LedgerQueueTest {
 protected:
  static constexpr int kTenants = 16, kEach = 16;
  static constexpr int kMost = 255;  // so that there is room for others
  // Adds as many waiters for each of 16 tenants.
  void WaitAll(uint64_t granules, int each = kEach) {
    for (int t = 0; t < kTenants; ++t) {
      sessions.push_back(Open(absl::StrCat("tenant-", t)));
    }
    for (const SessionId session : sessions) {
      for (int i = 0; i < each; ++i) {
        EXPECT_TRUE(ledger.BeginCall(session).ok());
        waiters.push_back(Wait(session, granules));
      }
    }
    EXPECT_THAT(ledger.AdmitWaiting(), IsEmpty());
  }
  // Returns how many waiters are checked for one acquisition of another tenant and its release.
  uint64_t CostOfOneMore(SessionId session, const char* device) {
    const uint64_t before = ledger.judged();
    const auto granted = Ask(session, kGranule, 1, device);
    EXPECT_TRUE(granted.ok() && *granted) << granted.status();
    EXPECT_THAT(ledger.AdmitWaiting(), IsEmpty());
    Finish(**granted);
    EXPECT_THAT(ledger.AdmitWaiting(), IsEmpty());
    Release(session, (*granted)->items);
    EXPECT_THAT(ledger.AdmitWaiting(), IsEmpty());
    return ledger.judged() - before;
  }

  // Returns how many waiters AdmitWaiting checks now. Requires that none of them can be served.
  uint64_t Judged() {
    const uint64_t before = ledger.judged();
    for (const Ledger::Admitted& each : ledger.AdmitWaiting()) {
      EXPECT_TRUE(absl::IsAborted(each.operation.status())) << each.operation.status();
    }
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    return ledger.judged() - before;
  }
  void Cancel(size_t waiter) {
    EXPECT_TRUE(absl::IsCancelled(ledger.EndWait(waiters[waiter], /*expired=*/false)));
  }

  std::vector<SessionId> sessions;
  std::vector<WaiterId> waiters;
};

TEST_F(ManyWaitersTest, ForTheDeviceCostOthersNothing) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1);
  Fill(a, 1000);
  WaitAll(512);
  EXPECT_EQ(CostOfOneMore(b, "GPU-2"), 0u);
  // Nor does a release there that serves none of them.
  const uint64_t before = ledger.judged();
  Release(a, {held[0].second});
  held.erase(held.begin());
  EXPECT_THAT(ledger.AdmitWaiting(), IsEmpty());
  EXPECT_EQ(ledger.judged(), before);
  // A release that serves the first of them does.
  Empty();
  EXPECT_THAT(Admit(), SizeIs(2));
}

TEST_F(ManyWaitersTest, ForTheirOwnLimitsCostOthersNothing) {
  ledger.Configure({}, {.limit_bytes = 8 * kGranule});
  const SessionId b = Open("b");
  std::vector<std::pair<SessionId, Operation::Item>> theirs;
  for (int t = 0; t < kTenants; ++t) {
    const SessionId session = Open(absl::StrCat("tenant-", t));
    for (const uint64_t granules : {uint64_t{1}, uint64_t{7}}) {
      theirs.emplace_back(session, AcquireOne(session, granules * kGranule));
    }
  }
  WaitAll(6);
  EXPECT_EQ(CostOfOneMore(b, "GPU-1"), 0u);
  // A change of one tenant checks only that tenant's waiters.
  const uint64_t before = ledger.judged();
  Release(theirs[0].first, {theirs[0].second});
  EXPECT_THAT(ledger.AdmitWaiting(), IsEmpty());
  EXPECT_LE(ledger.judged() - before, uint64_t{kEach});
  // A change that serves one of them grants it, however many others wait.
  Release(theirs[1].first, {theirs[1].second});
  EXPECT_THAT(Admit(), SizeIs(1));
  EXPECT_LE(ledger.judged() - before, uint64_t{4 * kEach});
}

TEST_F(ManyWaitersTest, ThatAreServedAreJudgedOnce) {
  const SessionId a = Open("a");
  Fill(a, 1024);
  WaitAll(1);
  Empty();
  EXPECT_THAT(Admit(), SizeIs(kTenants * kEach));
  // Once each as they came or were first checked, once each as they were served.
  EXPECT_LE(ledger.judged(), uint64_t{4 * kTenants * kEach});
}

TEST_F(ManyWaitersTest, OneThatGoesAtTheEndCostsNothing) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  WaitAll(512);
  const uint64_t before = ledger.judged();
  const WaiterId last_one = Wait(b, 4);
  EXPECT_THAT(ledger.AdmitWaiting(), IsEmpty());
  EXPECT_FALSE(ledger.EndWait(last_one, /*expired=*/false).ok());
  EXPECT_THAT(ledger.AdmitWaiting(), IsEmpty());
  EXPECT_EQ(ledger.judged(), before);
}

TEST_F(ManyWaitersTest, OneThatGoesFromTheMidstCostsALookAtItsOwnTenantsAtMost) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  WaitAll(512, kMost);
  // Index 1 is the second waiter, whose claim stands between the first and all others.
  for (const size_t gone : {1, 2000, 0, 300, 4079}) {
    Cancel(gone);
    EXPECT_LE(Judged(), uint64_t{kMost}) << gone;
  }
  EXPECT_EQ(CostOfOneMore(b, "GPU-2"), 0u);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waiters[2], waiters[3]));
}

TEST_F(ManyWaitersTest, OneThatGoesLetsInThoseBehindIt) {
  const SessionId a = Open("a");
  Fill(a, 1000);
  const WaiterId large = Wait(a, 1024);
  WaitAll(4, kMost);
  const uint64_t before = ledger.judged();
  EXPECT_FALSE(ledger.EndWait(large, /*expired=*/false).ok());
  EXPECT_THAT(Admit(), ElementsAreArray(waiters.begin(), waiters.begin() + 6));
  EXPECT_LE(ledger.judged() - before, uint64_t{8 * kMost});
}

TEST_F(ManyWaitersTest, ThoseOfASessionThatEndsCostOthersNothing) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  WaitAll(512, kMost);
  for (const size_t session : {0, 7, 15}) {
    ledger.ProcessGone(sessions[session]);
    EXPECT_EQ(Judged(), 0u);
  }
  EXPECT_EQ(CostOfOneMore(b, "GPU-2"), 0u);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waiters[kMost], waiters[kMost + 1]));
}

TEST_F(ManyWaitersTest, ASessionThatEndsInPartsCostsThemNothing) {
  const SessionId a = Open("a"), b = Open("b");
  Acquire(b, kGranule, 100);
  Fill(a, 924);
  WaitAll(512, kMost);
  ledger.ProcessGone(b, 10);
  ASSERT_TRUE(ledger.HasEnding());
  uint64_t judged = Judged();
  ledger.ContinueEnding(SIZE_MAX);
  judged += Judged();
  EXPECT_FALSE(ledger.HasEnding());
  EXPECT_EQ(judged, 0u);
}

TEST_F(ManyWaitersTest, OneThatGoesBeforeThemCostsThemNothing) {
  ledger.Configure({{"high", {.priority = 5}}}, {});
  const SessionId a = Open("a"), high = Open("high");
  Fill(a, 1024);
  WaitAll(512, kMost);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(ledger.BeginCall(high).ok());
    const WaiterId first = Wait(high, 600);
    EXPECT_EQ(Judged(), 0u);
    EXPECT_FALSE(ledger.EndWait(first, /*expired=*/false).ok());
    EXPECT_EQ(Judged(), 0u);
  }
}

// When its tenant uses more or less of its guarantee, the waiter's place in the queue changes.
TEST_F(ManyWaitersTest, OneThatChangesItsPlaceCostsALookAtItsOwnTenants) {
  ledger.Configure({{"owner", {.guarantee_bytes = 600 * kGranule}}}, {});
  const SessionId a = Open("a"), owner = Open("owner");
  Fill(owner, 500);
  Fill(a, 424);
  const WaiterId last_one = [&] {
    WaitAll(412, kMost);
    return Wait(owner, 200);
  }();
  const auto position = [&] { return (*ledger.ListWaiting("owner", ""))[0].position; };
  EXPECT_EQ(position(), kTenants * kMost + 1u);
  const uint64_t before = ledger.judged();
  Release(owner, {held[0].second});  // its guarantee covers the request again
  EXPECT_EQ(position(), 1u);
  EXPECT_THAT(Admit(), ElementsAre(last_one));
  EXPECT_LE(ledger.judged() - before, 8u);
}

TEST_F(ManyWaitersTest, OneOfAnotherSortIsRefusedAlone) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1000);
  const WaiterId firm = Wait(b, 500);
  WaitAll(512, kMost);
  const auto granted = Ask(b, {.device_uuid = "GPU-2", .bytes = kGranule, .revocable = true});
  ASSERT_TRUE(granted.ok() && *granted) << granted.status();
  const uint64_t before = ledger.judged();
  const auto admitted = ledger.AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_EQ(admitted[0].waiter, firm);
  EXPECT_TRUE(absl::IsFailedPrecondition(admitted[0].operation.status()));
  EXPECT_LE(ledger.judged() - before, 1u);
}

TEST_F(ManyWaitersTest, WhoseTimeIsUpTogetherAreAllTold) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  const WaiterId first = Wait(b, 10);
  EXPECT_TRUE(ledger.BeginCall(b).ok());
  const WaiterId second = Wait(b, 20);
  const std::vector<absl::Status> ends = ledger.EndExpiredWaits({first, second});
  ASSERT_THAT(ends, SizeIs(2));
  ExpectDenial(ends[0], Denial::Cause::kCapacity, "b", "GPU-1", 10 * kGranule, kCapacity,
               kCapacity);
  ExpectDenial(ends[1], Denial::Cause::kCapacity, "b", "GPU-1", 20 * kGranule, kCapacity,
               kCapacity);
  EXPECT_EQ(ledger.look().GetTenant("b")->denials, 2u);
  EXPECT_THAT(*ledger.ListWaiting("", ""), IsEmpty());
}

TEST_F(LedgerQueueTest, WhoDoesNotAskToWaitStaysInFlight) {
  ledger.Configure({{"b", {.limit_bytes = 8 * kGranule, .max_in_flight = 1}}}, {});
  const SessionId b = Open("b");
  Release(b, Acquire(b, 8 * kGranule));
  const auto soon = ledger.BeginAcquire(b, Of(5, /*waits=*/false));
  ASSERT_TRUE(soon.ok() && soon->waiter) << soon.status();
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.BeginCall(b)));
  EXPECT_THAT(Admit(), SizeIs(1));
}

TEST_F(LedgerQueueTest, AWaiterLeavesNoTrace) {
  const SessionId a = Open("a"), b = Open("b"), c = Open("c");
  Fill(a, 1024);
  const WaiterId cancelled = Wait(b, 10), expired = Wait(b, 20), dead = Wait(c, 30);
  EXPECT_EQ(ledger.look().GetTenant("b")->waiting, 2u);
  EXPECT_EQ(ledger.look().GetTenant("b")->devices[0].waited_for, 30 * kGranule);
  ASSERT_THAT(*ledger.ListWaiting("", ""), SizeIs(3));
  EXPECT_EQ((*ledger.ListWaiting("", ""))[2].position, 3u);
  EXPECT_EQ((*ledger.ListWaiting("c", "GPU-1"))[0].position, 3u);
  EXPECT_EQ((*ledger.ListWaiting("b", ""))[0].blocked_by.cause, Denial::Cause::kCapacity);
  EXPECT_TRUE(absl::IsNotFound(ledger.ListWaiting("nobody", "").status()));

  EXPECT_FALSE(ledger.EndWait(cancelled, /*expired=*/false).ok());
  EXPECT_EQ(ledger.look().GetTenant("b")->denials, 0u);
  EXPECT_FALSE(ledger.EndWait(expired, /*expired=*/true).ok());
  EXPECT_EQ(ledger.look().GetTenant("b")->denials, 1u);
  ledger.ProcessGone(c);
  const auto admitted = ledger.AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_EQ(admitted[0].waiter, dead);
  EXPECT_TRUE(absl::IsAborted(admitted[0].operation.status()));
  ledger.EndCall(c);  // answered
  EXPECT_EQ(ledger.look().GetTenant("b")->waiting, 0u);
  EXPECT_THAT(*ledger.ListWaiting("", ""), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetTenant("c").status()));
  Empty();
  EXPECT_THAT(Admit(), IsEmpty());
}

TEST_F(LedgerQueueTest, WhoWaitsIsNotInFlight) {
  ledger.Configure({{"b", {.max_in_flight = 1, .max_waiting = 1}}}, {});
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  Wait(b, 10);
  ASSERT_TRUE(ledger.BeginCall(b).ok()) << "it can still release what it has";
  ExpectDenial(ledger.BeginAcquire(b, Of(10)).status(), Denial::Cause::kMaxWaiting, "b", "", 1, 1,
               1);
  Empty();
  EXPECT_THAT(Admit(), SizeIs(1));
}

TEST_F(LedgerQueueTest, DrainingRefusesWhoWaits) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  Wait(b, 10);
  ledger.SetDraining(true);
  const auto admitted = ledger.AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(admitted[0].operation.status()));
}

TEST_F(LedgerQueueTest, AHigherLimitLetsInWhoWaitsForIt) {
  ledger.Configure({{"b", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId b = Open("b");
  Fill(b, 8);
  const WaiterId waits = Wait(b, 4);
  SetQuota("b", {.limit_bytes = 12 * kGranule});
  EXPECT_THAT(Admit(), ElementsAre(waits));
}

TEST_F(LedgerQueueTest, ALowerLimitBreaksNoHolder) {
  const SessionId b = Open("b");
  Fill(b, 8);
  SetQuota("b", {.limit_bytes = 4 * kGranule});
  EXPECT_EQ(Usage("b").leased, 8 * kGranule);
  ExpectDenial(ledger.BeginAcquire(b, Of(1, false)).status(), Denial::Cause::kDeviceLimit, "b",
               "GPU-1", kGranule, 8 * kGranule, 4 * kGranule);
}

// --- Guarantees ----------------------------------------------------------------------

TEST_F(LedgerQueueTest, WhatIsGuaranteedToOthersIsNotBorrowedFirmly) {
  ledger.Configure({{"owner", {.guarantee_bytes = 24 * kGranule}}}, {});
  const SessionId owner = Open("owner"), b = Open("b");
  Fill(b, 1000);
  const absl::Status denied = ledger.BeginAcquire(b, Of(1, /*waits=*/false)).status();
  ExpectDenial(denied, Denial::Cause::kGuarantees, "b", "GPU-1", kGranule, kCapacity, kCapacity);
  EXPECT_THAT(HelpOf(denied), HasSubstr("revocable"));
  // To the last byte.
  Fill(owner, 24);
  EXPECT_EQ(ledger.state().charged(0), kCapacity);
  ExpectDenial(ledger.BeginAcquire(owner, Of(1, false)).status(), Denial::Cause::kCapacity, "owner",
               "GPU-1", kGranule, kCapacity, kCapacity);
}

TEST_F(LedgerQueueTest, AboveItsGuaranteeATenantBorrowsWhatIsFree) {
  ledger.Configure({{"owner", {.guarantee_bytes = 24 * kGranule}},
                    {"second", {.guarantee_bytes = 100 * kGranule}}},
                   {});
  const SessionId owner = Open("owner"), second = Open("second");
  Fill(owner, 924);
  EXPECT_EQ(Usage("owner").guarantee, 24 * kGranule);
  EXPECT_EQ(Usage("owner").borrowed, 900 * kGranule);
  const WaiterId waits = Wait(owner, 1);
  Fill(second, 100);
  EXPECT_EQ(Usage("second").borrowed, 0u);
  EXPECT_THAT(Admit(), IsEmpty());
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waits));
}

TEST_F(LedgerQueueTest, AGuaranteeIsObtainedFromWhatOthersOnlyRetain) {
  ledger.Configure({{"owner", {.guarantee_bytes = 512 * kGranule}}}, {});
  const SessionId owner = Open("owner"), b = Open("b");
  Release(b, Acquire(b, 256 * kGranule, 2));
  Release(owner, Acquire(owner, 512 * kGranule, 1));
  EXPECT_EQ(Usage("b").retained, 512 * kGranule);
  EXPECT_EQ(AcquireOne(owner, 512 * kGranule).reused, true);
  EXPECT_EQ(Usage("b").retained, 512 * kGranule);
}

// --- Members and their team ------------------------------------------------------------

TEST_F(LedgerQueueTest, WhatMembersHaveCountsAgainstTheirTeam) {
  ledger.Configure({{"team", {.limit_bytes = 10 * kGranule}},
                    {"x", {.limit_bytes = 8 * kGranule, .parent = "team"}},
                    {"y", {.parent = "team"}}},
                   {});
  const SessionId x = Open("x"), y = Open("y");
  Fill(x, 8);
  Fill(y, 2);
  const absl::Status denied = ledger.BeginAcquire(y, Of(1, false)).status();
  ExpectDenial(denied, Denial::Cause::kDeviceLimit, "y", "GPU-1", kGranule, 10 * kGranule,
               10 * kGranule);
  EXPECT_EQ(DenialOf(denied)->limited_tenant, "team");
  EXPECT_THAT(HelpOf(denied), HasSubstr("quota set team"));
  ASSERT_THAT(DenialOf(denied)->holders, SizeIs(2));
  EXPECT_EQ(DenialOf(denied)->holders[0].tenant, "x");
  EXPECT_EQ(Usage("team").leased, 10 * kGranule);
  EXPECT_EQ(Usage("x").leased, 8 * kGranule);
  EXPECT_EQ(ledger.look().GetTenant("team")->sessions, 2u);
  EXPECT_THAT(ledger.look().GetTenant("x")->above, ElementsAre("team"));
  // Segments that one member only retains make room for another member.
  Release(x, {held[0].second});
  held.erase(held.begin());
  EXPECT_EQ(Usage("team").retained, 8 * kGranule);
  const absl::StatusOr<Admission> soon = ledger.BeginAcquire(y, Of(1, false));
  ASSERT_TRUE(soon.ok() && soon->waiter) << soon.status();
  EXPECT_THAT(Admit(), ElementsAre(*soon->waiter));
  Empty();
}

TEST_F(LedgerQueueTest, CountsOfATeamBindItsMembers) {
  ledger.Configure({{"team", {.max_segments = 2, .max_sessions = 2, .max_waiting = 1}},
                    {"x", {.parent = "team"}},
                    {"y", {.parent = "team"}}},
                   {});
  const SessionId x = Open("x"), y = Open("y");
  const absl::Status third = ledger.OpenSession("x", {}, NewSecret()).status();
  ExpectDenial(third, Denial::Cause::kMaxSessions, "x", "", 1, 2, 2);
  EXPECT_EQ(DenialOf(third)->limited_tenant, "team");
  Fill(x, 1);
  Fill(x, 1);
  const WaiterId waits = Wait(x, 1);
  ExpectDenial(ledger.BeginAcquire(y, Of(1)).status(), Denial::Cause::kMaxWaiting, "y", "", 1, 1,
               1);
  ExpectDenial(ledger.BeginAcquire(y, Of(1, false)).status(), Denial::Cause::kMaxSegments, "y", "",
               1, 2, 2);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waits));
}

TEST_F(LedgerQueueTest, AMembersGuaranteeHoldsWithinItsTeam) {
  ledger.Configure({{"team", {.limit_bytes = 10 * kGranule, .guarantee_bytes = 8 * kGranule}},
                    {"x", {.guarantee_bytes = 3 * kGranule, .parent = "team"}},
                    {"y", {.parent = "team"}}},
                   {});
  const SessionId x = Open("x"), y = Open("y"), stranger = Open("stranger");
  Fill(stranger, kCapacity / kGranule - 8);
  // x has three of the team's ten, and three of its guaranteed eight.
  const absl::Status denied = ledger.BeginAcquire(y, Of(8, false)).status();
  EXPECT_EQ(DenialOf(denied)->cause, Denial::Cause::kGuarantees) << denied;
  EXPECT_EQ(DenialOf(denied)->limited_tenant, "team");
  Fill(y, 5);
  ExpectDenial(ledger.BeginAcquire(y, Of(1, false)).status(), Denial::Cause::kGuarantees, "y",
               "GPU-1", kGranule, kCapacity, kCapacity);
  Fill(x, 3);
  Empty();
}

TEST_F(LedgerQueueTest, MembersMoveWithWhatTheyHave) {
  ledger.Configure({{"one", {}}, {"two", {}}, {"x", {.parent = "one"}}}, {});
  const SessionId x = Open("x");
  Fill(x, 5);
  EXPECT_EQ(Usage("one").leased, 5 * kGranule);
  ledger.Configure({{"two", {}}, {"x", {.parent = "two"}}}, {});
  EXPECT_EQ(Usage("two").leased, 5 * kGranule);
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetTenant("one").status()));
  ledger.Configure({}, {.parent = "two"});  // that tenant does not exist now
  EXPECT_EQ(Usage("x").leased, 5 * kGranule);
  EXPECT_THAT(ledger.look().GetTenant("x")->above, IsEmpty());
  Empty();
}

TEST_F(LedgerQueueTest, ScrubbedMemoryIsNotReused) {
  ledger.Configure({{"a", {.scrub = true}}}, {});
  const SessionId a = Open("a");
  Release(a, Acquire(a, kGranule));
  EXPECT_EQ(Usage("a").retained, 0u);
  EXPECT_FALSE(AcquireOne(a, kGranule).reused);
}

TEST_F(LedgerQueueTest, TheTenantsKindIsThatOfRequestsThatNameNone) {
  ledger.Configure({{"a", {.kind = Kind::kIpc}}}, {});
  const absl::Status none = ledger.BeginAcquire(Open("a"), Of(1)).status();
  EXPECT_TRUE(absl::IsUnimplemented(none)) << none;  // these devices make no other kind than vmm
}

}  // namespace
}  // namespace gpumemd
