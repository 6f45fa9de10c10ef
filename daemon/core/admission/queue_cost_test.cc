// SPDX-License-Identifier: Apache-2.0
// How many waiters are checked again when one of many waiters or the memory changes.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/admission/testing/queue_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ManyWaitersTest : public LedgerQueueFixture {
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
        EXPECT_TRUE(ledger.sessions().BeginCall(session).ok());
        waiters.push_back(Wait(session, granules));
      }
    }
    EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  }
  // Returns how many waiters are checked for one acquisition of another tenant and its release.
  uint64_t CostOfOneMore(SessionId session, const char* device) {
    const uint64_t before = ledger.admission().checked();
    const auto granted = Ask(session, kGranule, 1, device);
    EXPECT_TRUE(granted.ok() && *granted) << granted.status();
    EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
    Finish(**granted);
    EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
    Release(session, (*granted)->items);
    EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
    return ledger.admission().checked() - before;
  }

  // Returns how many waiters AdmitWaiting checks now. Requires that none of them can be served.
  uint64_t Checked() {
    const uint64_t before = ledger.admission().checked();
    for (const AdmissionControl::Admitted& each : ledger.admission().AdmitWaiting()) {
      EXPECT_TRUE(absl::IsAborted(each.operation.status())) << each.operation.status();
    }
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    return ledger.admission().checked() - before;
  }
  void Cancel(size_t waiter) {
    EXPECT_TRUE(absl::IsCancelled(ledger.admission().EndWait(waiters[waiter], /*expired=*/false)));
  }

  std::vector<SessionId> sessions;
  std::vector<WaiterId> waiters;
};

TEST_F(ManyWaitersTest, WaitersForADeviceAreNotCheckedForOtherTenants) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1);
  Fill(a, 1000);
  WaitAll(512);
  EXPECT_EQ(CostOfOneMore(b, "GPU-2"), 0u);
  // Nor does a release there that serves none of them.
  const uint64_t before = ledger.admission().checked();
  Release(a, {held[0].second});
  held.erase(held.begin());
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  EXPECT_EQ(ledger.admission().checked(), before);
  // A release that serves the first of them does.
  Empty();
  EXPECT_THAT(Admit(), SizeIs(2));
}

TEST_F(ManyWaitersTest, WaitersAtTheirLimitsAreNotCheckedForOtherTenants) {
  ledger.tenants().Configure({}, {.limit_bytes = 8 * kGranule});
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
  const uint64_t before = ledger.admission().checked();
  Release(theirs[0].first, {theirs[0].second});
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  EXPECT_LE(ledger.admission().checked() - before, uint64_t{kEach});
  // A change that serves one of them grants it, however many others wait.
  Release(theirs[1].first, {theirs[1].second});
  EXPECT_THAT(Admit(), SizeIs(1));
  EXPECT_LE(ledger.admission().checked() - before, uint64_t{4 * kEach});
}

TEST_F(ManyWaitersTest, ServedWaitersAreCheckedOnce) {
  const SessionId a = Open("a");
  Fill(a, 1024);
  WaitAll(1);
  Empty();
  EXPECT_THAT(Admit(), SizeIs(kTenants * kEach));
  // Once each as they came or were first checked, once each as they were served.
  EXPECT_LE(ledger.admission().checked(), uint64_t{4 * kTenants * kEach});
}

TEST_F(ManyWaitersTest, CancellingTheLastWaiterChecksNone) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  WaitAll(512);
  const uint64_t before = ledger.admission().checked();
  const WaiterId last_one = Wait(b, 4);
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  EXPECT_FALSE(ledger.admission().EndWait(last_one, /*expired=*/false).ok());
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  EXPECT_EQ(ledger.admission().checked(), before);
}

TEST_F(ManyWaitersTest, CancellingAMiddleWaiterChecksItsTenantAtMost) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  WaitAll(512, kMost);
  // Index 1 is the second waiter, whose claim stands between the first and all others.
  for (const size_t gone : {1, 2000, 0, 300, 4079}) {
    Cancel(gone);
    EXPECT_LE(Checked(), uint64_t{kMost}) << gone;
  }
  EXPECT_EQ(CostOfOneMore(b, "GPU-2"), 0u);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waiters[2], waiters[3]));
}

TEST_F(ManyWaitersTest, CancellingTheFirstWaiterAdmitsThoseBehindIt) {
  const SessionId a = Open("a");
  Fill(a, 1000);
  const WaiterId large = Wait(a, 1024);
  WaitAll(4, kMost);
  const uint64_t before = ledger.admission().checked();
  EXPECT_FALSE(ledger.admission().EndWait(large, /*expired=*/false).ok());
  EXPECT_THAT(Admit(), ElementsAreArray(waiters.begin(), waiters.begin() + 6));
  EXPECT_LE(ledger.admission().checked() - before, uint64_t{8 * kMost});
}

TEST_F(ManyWaitersTest, EndOfASessionChecksNoOtherWaiters) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1024);
  WaitAll(512, kMost);
  for (const size_t session : {0, 7, 15}) {
    ledger.endings().ProcessGone(sessions[session]);
    EXPECT_EQ(Checked(), 0u);
  }
  EXPECT_EQ(CostOfOneMore(b, "GPU-2"), 0u);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waiters[kMost], waiters[kMost + 1]));
}

TEST_F(ManyWaitersTest, SessionThatEndsInPartsChecksNoWaiters) {
  const SessionId a = Open("a"), b = Open("b");
  Acquire(b, kGranule, 100);
  Fill(a, 924);
  WaitAll(512, kMost);
  ledger.endings().ProcessGone(b, 10);
  ASSERT_TRUE(ledger.endings().HasAny());
  uint64_t count = Checked();
  ledger.endings().Continue(SIZE_MAX);
  count += Checked();
  EXPECT_FALSE(ledger.endings().HasAny());
  EXPECT_EQ(count, 0u);
}

TEST_F(ManyWaitersTest, WaiterOfHigherPriorityChecksNoOthers) {
  ledger.tenants().Configure({{"high", {.priority = 5}}}, {});
  const SessionId a = Open("a"), high = Open("high");
  Fill(a, 1024);
  WaitAll(512, kMost);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(ledger.sessions().BeginCall(high).ok());
    const WaiterId first = Wait(high, 600);
    EXPECT_EQ(Checked(), 0u);
    EXPECT_FALSE(ledger.admission().EndWait(first, /*expired=*/false).ok());
    EXPECT_EQ(Checked(), 0u);
  }
}

// When its tenant uses more or less of its guarantee, the waiter's place in the queue changes.
TEST_F(ManyWaitersTest, WaiterThatChangesItsPlaceChecksItsTenantOnly) {
  ledger.tenants().Configure({{"owner", {.guarantee_bytes = 600 * kGranule}}}, {});
  const SessionId a = Open("a"), owner = Open("owner");
  Fill(owner, 500);
  Fill(a, 424);
  const WaiterId last_one = [&] {
    WaitAll(412, kMost);
    return Wait(owner, 200);
  }();
  const auto position = [&] { return (*ledger.admission().ListWaiting("owner", ""))[0].position; };
  EXPECT_EQ(position(), kTenants * kMost + 1u);
  const uint64_t before = ledger.admission().checked();
  Release(owner, {held[0].second});  // its guarantee covers the request again
  EXPECT_EQ(position(), 1u);
  EXPECT_THAT(Admit(), ElementsAre(last_one));
  EXPECT_LE(ledger.admission().checked() - before, 8u);
}

TEST_F(ManyWaitersTest, FirmWaiterOfARevocableProcessIsRefusedAlone) {
  const SessionId a = Open("a"), b = Open("b");
  Fill(a, 1000);
  const WaiterId firm = Wait(b, 500);
  WaitAll(512, kMost);
  const auto granted = Ask(b, {.device_uuid = "GPU-2", .bytes = kGranule, .revocable = true});
  ASSERT_TRUE(granted.ok() && *granted) << granted.status();
  const uint64_t before = ledger.admission().checked();
  const auto admitted = ledger.admission().AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_EQ(admitted[0].waiter, firm);
  EXPECT_TRUE(absl::IsFailedPrecondition(admitted[0].operation.status()));
  EXPECT_LE(ledger.admission().checked() - before, 1u);
}

}  // namespace
}  // namespace gpumemd
