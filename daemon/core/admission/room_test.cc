// SPDX-License-Identifier: Apache-2.0
// What makes room for a request: segments that are retained, in which order, and their reuse; and
// how many bytes a tenant can get at most.
#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using RoomTest = LedgerFixture;

TEST_F(RoomTest, OldestRetainedSegmentOfTheTenantIsGivenUpFirst) {
  ledger.tenants().Configure({{"team", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  const auto first = AcquireOne(session, kGranule);
  const auto second = AcquireOne(session, 2 * kGranule);
  const auto third = AcquireOne(session, 4 * kGranule);
  Release(session, {second});
  Release(session, {first});
  Release(session, {third});
  EXPECT_TRUE(Soon(Ask(session, 3 * kGranule)));  // of 8, 7 are retained: 2 have to go
  EXPECT_THAT(Drain(ledger.effects().doomed), ElementsAre(second.segment));
  EXPECT_TRUE(Soon(Ask(session, 3 * kGranule)));  // not destroyed yet: nothing more goes
  EXPECT_THAT(Drain(ledger.effects().doomed), IsEmpty());
  ledger.Destroyed(second.segment);
  EXPECT_TRUE(Granted(Ask(session, 3 * kGranule)));
}

TEST_F(RoomTest, TenantThatRetainsMostIsNext) {
  const SessionId rich = OpenSession("rich");
  const SessionId poor = OpenSession("poor");
  const SessionId session = OpenSession("team");
  const auto poors = Acquire(poor, 200 * kGranule);
  const auto richs = Acquire(rich, 300 * kGranule);
  const auto own = Acquire(session, 24 * kGranule);
  Acquire(session, 500 * kGranule);
  Release(poor, poors);
  Release(rich, richs);
  Release(session, own);
  EXPECT_TRUE(Soon(Ask(session, 24 * kGranule + 1)));
  EXPECT_THAT(DestroyDoomed(), ElementsAre(own[0].segment, richs[0].segment));
  EXPECT_EQ(Usage("poor").retained, 200 * kGranule);
  Acquire(session, 25 * kGranule);
}

TEST_F(RoomTest, RetainedMemoryOfOthersIsNotGivenUpForATenantsLimit) {
  ledger.tenants().Configure({{"team", {.limit_bytes = 4 * kGranule}}}, {});
  const SessionId other = OpenSession("other");
  Release(other, Acquire(other, 4 * kGranule));
  const SessionId session = OpenSession("team");
  Acquire(session, 4 * kGranule);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, 1).status()));
  EXPECT_EQ(Usage("other").retained, 4 * kGranule);
}

TEST_F(RoomTest, TotalLimitsGiveUpRetainedMemoryOfOtherDevices) {
  ledger.tenants().Configure({{"team", {.total_limit_bytes = 8 * kGranule, .max_segments = 3}}},
                             {});
  const SessionId session = OpenSession("team");
  const auto kept = Acquire(session, 4 * kGranule, 1, "GPU-2");
  Acquire(session, 2 * kGranule, 2);
  Release(session, kept);
  EXPECT_TRUE(Soon(Ask(session, kGranule)));
  EXPECT_THAT(DestroyDoomed(), ElementsAre(kept[0].segment));
  Acquire(session, kGranule);
}

TEST_F(RoomTest, ExactFitsAreReusedAndTheRestIsMade) {
  ledger.tenants().Configure({{"team", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  const auto kept = Acquire(session, 2 * kGranule, 2);
  Release(session, kept);
  const auto items = Acquire(session, 2 * kGranule - 1, 3);
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0].segment, kept[0].segment);
  EXPECT_EQ(items[1].segment, kept[1].segment);
  EXPECT_TRUE(items[0].reused && items[1].reused && items[2].fresh);
  EXPECT_FALSE(items[0].fresh || items[1].fresh || items[2].reused);
  EXPECT_TRUE(ledger.look().Describe(items[0]).reused);
}

// The tenant gets nothing while it is above its limit, not even what it retained.
TEST_F(RoomTest, NoReuseAboveALoweredLimit) {
  ledger.tenants().Configure({{"team", {}}}, {});
  const SessionId session = OpenSession("team");
  Release(session, Acquire(session, 2 * kGranule, 4));
  SetQuota("team", {.limit_bytes = 4 * kGranule});
  EXPECT_EQ(Usage("team").retained, 4 * kGranule);
  EXPECT_EQ(Usage("team").charged, 8 * kGranule);  // two are on their way back
  EXPECT_TRUE(Soon(Ask(session, 2 * kGranule, 2)));
  EXPECT_EQ(DestroyDoomed().size(), 2u);
  EXPECT_TRUE(Acquire(session, 2 * kGranule, 2)[1].reused);
}

TEST_F(RoomTest, MemoryReleasedAboveALoweredTotalIsNotRetained) {
  ledger.tenants().Configure({{"team", {}}}, {});
  const SessionId session = OpenSession("team");
  const auto items = Acquire(session, 2 * kGranule, 4);
  SetQuota("team", {.total_limit_bytes = 4 * kGranule});
  Release(session, {items[0], items[1]});
  EXPECT_EQ(Usage("team").retained, 0u);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, 2 * kGranule).status()));
  SetQuota("team", {.max_segments = 1});
  Release(session, {items[2]});
  EXPECT_EQ(Usage("team").retained, 0u);
  Release(session, {items[3]});  // the one that the limit allows
  EXPECT_EQ(Usage("team").retained, 2 * kGranule);
}

TEST_F(RoomTest, LoweredRetentionTakesEffectAtOnce) {
  ledger.tenants().Configure({{"team", {}}}, {});
  const SessionId session = OpenSession("team");
  Release(session, Acquire(session, 2 * kGranule, 4));
  SetQuota("team", {.max_retained_bytes = 5 * kGranule});
  EXPECT_EQ(Usage("team").retained, 4 * kGranule);
  SetQuota("team", {.max_retained_bytes = 5 * kGranule, .device_max_retained = {{"GPU-1", 0}}});
  EXPECT_EQ(Usage("team").retained, 0u);
  EXPECT_EQ(DestroyDoomed().size(), 4u);
}

TEST_F(RoomTest, DriverGetsRetainedMemoryOfTheTenantFirst) {
  const SessionId other = OpenSession("other");
  const auto others = Acquire(other, 8 * kGranule);
  Release(other, others);
  const SessionId session = OpenSession("team");
  const auto own = Acquire(session, 2 * kGranule);
  Release(session, own);
  EXPECT_TRUE(ledger.operations().MakeRoomOnDevice(session, 0, 2 * kGranule));
  EXPECT_THAT(Drain(ledger.effects().doomed), ElementsAre(own[0].segment));
  EXPECT_TRUE(ledger.operations().MakeRoomOnDevice(session, 0, 2 * kGranule + 1));
  EXPECT_THAT(Drain(ledger.effects().doomed), ElementsAre(others[0].segment));
  ledger.Destroyed(own[0].segment);
  EXPECT_TRUE(ledger.operations().MakeRoomOnDevice(session, 0,
                                                   1));  // the other tenant's is still releasing
  ledger.Destroyed(others[0].segment);
  EXPECT_FALSE(ledger.operations().MakeRoomOnDevice(session, 0, 1));
}

TEST_F(RoomTest, WhatTheDriverDoesNotHaveIsNotGranted) {
  const SessionId session = OpenSession("team");
  const auto held = Acquire(session, kCapacity - 4 * kGranule);
  ledger.operations().NoteElsewhere(0, 5 * kGranule);  // more than is left: nothing is known
  ledger.operations().NoteElsewhere(0, 3 * kGranule);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, 3 * kGranule).status()));
  const auto small = Acquire(session, 2 * kGranule);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, kGranule).status()));
  Release(session, small);
  EXPECT_TRUE(Ask(session, 2 * kGranule).ok());
  ledger.operations().ForgetElsewhere();
  EXPECT_TRUE(Ask(session, 2 * kGranule).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, kGranule).status()));
}

TEST_F(RoomTest, ScrubbedMemoryIsNotReused) {
  ledger.tenants().Configure({{"a", {.scrub = true}}}, {});
  const SessionId a = OpenSession("a");
  Release(a, Acquire(a, kGranule));
  EXPECT_EQ(Usage("a").retained, 0u);
  EXPECT_FALSE(AcquireOne(a, kGranule).reused);
}

TEST_F(RoomTest, GuaranteesOfOthersReduceTheObtainableBytes) {
  ledger.tenants().Configure(
      {{"owner", {.guarantee_bytes = 24 * kGranule}}, {"spot", {.revocable = true}}}, {});
  const SessionId other = OpenSession("other");
  EXPECT_EQ(Usage("owner").obtainable, kCapacity);
  EXPECT_EQ(Usage("other").obtainable, kCapacity - 24 * kGranule);
  EXPECT_EQ(Usage("spot").obtainable, kCapacity);
  const auto held = Acquire(other, 100 * kGranule);
  EXPECT_EQ(Usage("owner").obtainable, kCapacity - 100 * kGranule);
  EXPECT_EQ(Usage("other").obtainable, kCapacity - 124 * kGranule);
  EXPECT_EQ(Usage("spot").obtainable, kCapacity - 100 * kGranule);
  EXPECT_EQ(Usage("other", 1).obtainable, kCapacity - 24 * kGranule);
  // Retained memory is obtainable again.
  Release(other, held);
  EXPECT_EQ(Usage("other").obtainable, kCapacity - 24 * kGranule);
}

TEST_F(RoomTest, LimitsOfParentsReduceTheObtainableBytes) {
  ledger.tenants().Configure(
      {{"team", {.limit_bytes = 10 * kGranule, .total_limit_bytes = 12 * kGranule}},
       {"x", {.limit_bytes = 8 * kGranule, .parent = "team"}},
       {"y", {.parent = "team"}}},
      {});
  EXPECT_EQ(Usage("x").obtainable, 8 * kGranule);
  EXPECT_EQ(Usage("y").obtainable, 10 * kGranule);
  Acquire(OpenSession("y"), 4 * kGranule);
  EXPECT_EQ(Usage("x").limit, 8 * kGranule);
  EXPECT_EQ(Usage("x").obtainable, 6 * kGranule);
  EXPECT_EQ(Usage("team").obtainable, 6 * kGranule);
  EXPECT_EQ(Usage("y", 1).obtainable, 8 * kGranule) << "by the total limit";
}

class DaemonRoomTest : public LedgerFixture {
 protected:
  DaemonRoomTest() : LedgerFixture(Bounds{.max_segments = 4}) {}
};

TEST_F(DaemonRoomTest, DaemonLimitGivesUpRetainedMemoryOfOthers) {
  const SessionId other = OpenSession("other");
  const auto kept = Acquire(other, kGranule, 2, "GPU-2");
  Release(other, kept);
  const SessionId session = OpenSession("team");
  Acquire(session, 1, 2);
  EXPECT_TRUE(Soon(Ask(session, 1)));
  EXPECT_THAT(DestroyDoomed(), ElementsAre(kept[0].segment));
  EXPECT_TRUE(Granted(Ask(session, 1)));
}

}  // namespace
}  // namespace gpumemd
