// SPDX-License-Identifier: Apache-2.0
// Whom the policy asks where the host tier is small, and where a tenant is at a limit.
#include "absl/status/statusor.h"
#include "daemon/core/suspension/swap_policy.h"
#include "daemon/core/suspension/testing/swap_fixture.h"

namespace gpumemd {
namespace swap_tier_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class SmallTierTest : public SwapFixture {
 protected:
  SmallTierTest() : SwapFixture(/*granules=*/10, /*tier_granules=*/5) {}
};

TEST_F(SmallTierTest, NoneIsAskedForWhomTheTierHasNoRoom) {
  SetQuota("a", Swappable());
  OpenHolding("a", 6);
  const SessionId fits = OpenHolding("a", 4);
  ASSERT_TRUE(Wait(OpenSession("b"), 3));
  EXPECT_THAT(Asked(), ElementsAre(fits));
}

TEST_F(SmallTierTest, ARefusalEndsTheRequest) {
  SetQuota("a", Swappable());
  const SessionId a = OpenHolding("a", 5), b = OpenHolding("a", 5);
  ASSERT_TRUE(Wait(OpenSession("b"), 3));
  EXPECT_THAT(Asked(), ElementsAre(a));
  ledger.swaps().Refused(a);
  Pass(SwapPolicy::kPause);
  EXPECT_THAT(Asked(), ElementsAre(b));
  EXPECT_EQ(counts().refused, 1u);
}

// Scratch memory is dropped: it needs no room in the tier.
TEST_F(SmallTierTest, ScratchMemoryOfAnySizeFits) {
  SetQuota("a", Swappable());
  const SessionId a = OpenServing("a");
  for (const bool scratch : {true, false}) {
    auto answer =
        Ask(a, {.device_uuid = "GPU-1", .bytes = (scratch ? 7 : 3) * kGranule, .scratch = scratch});
    ASSERT_TRUE(Granted(answer)) << answer.status();
    Finish(**answer);
  }
  ASSERT_TRUE(Wait(OpenSession("b"), 3));
  EXPECT_THAT(Asked(), ElementsAre(a));
}

TEST_F(SmallTierTest, TheRoomOfThoseThatAreAskedIsTaken) {
  SetQuota("a", Swappable());
  const SessionId first = OpenHolding("a", 4);
  OpenHolding("a", 4);
  ASSERT_TRUE(Wait(OpenSession("b"), 6));
  EXPECT_THAT(Asked(), ElementsAre(first));
  ASSERT_TRUE(Wait(OpenSession("b"), 3));
  EXPECT_THAT(Asked(), IsEmpty()) << "the tier has room for one of the two";
}

TEST_F(SmallTierTest, ATenantWhoseReleasesAreNotTrustedIsNotAsked) {
  Quota quota = Swappable();
  quota.release = ReleasePolicy::kOnExit;
  SetQuota("a", quota);
  OpenHolding("a", 4);
  ASSERT_TRUE(Wait(OpenSession("b"), 8));
  EXPECT_THAT(Asked(), IsEmpty()) << "its memory would stay charged";
  EXPECT_FALSE(ledger.look().ListSessions("a")->at(0).swappable);
}

class SwapRoomTest : public SwapFixture {
 protected:
  SwapRoomTest() : SwapFixture(/*granules=*/SwapPolicy::kLooks + 11, /*tier_granules=*/1000) {}
};

// What one tenant will suspend takes nothing of another tenant's limit.
TEST_F(SwapRoomTest, TenantsWithLimitsOfTheirOwnAddUp) {
  Quota quota = Swappable();
  quota.tier_limit_bytes = 200 * kGranule;
  SetQuota("a", quota);
  SetQuota("c", quota);
  const SessionId a = OpenHolding("a", 200), c = OpenHolding("c", 200);
  OpenHolding("full", SwapPolicy::kLooks + 11 - 400);
  ASSERT_TRUE(Wait(OpenSession("b"), 400));
  EXPECT_THAT(Asked(), UnorderedElementsAre(a, c));
}

TEST_F(SwapRoomTest, ManyWithoutRoomHideNobody) {
  Quota full = Swappable();
  full.priority = -1;
  full.tier_limit_bytes = 0;
  SetQuota("full", full);
  SetQuota("a", Swappable());
  for (size_t i = 0; i <= SwapPolicy::kLooks; ++i) OpenHolding("full", 1);
  const SessionId a = OpenHolding("a", 10);
  ASSERT_TRUE(Wait(OpenSession("b"), 3));
  for (int i = 0; i < 4; ++i) Pass(SwapPolicy::kPause);
  EXPECT_THAT(Asked(), ElementsAre(a));
}

// --- Limits of tenants

using SwapLimitTest = SwapFixture;

TEST_F(SwapLimitTest, ATotalLimitIsReasonEnough) {
  Quota quota = Swappable();
  quota.total_limit_bytes = 8 * kGranule;
  SetQuota("a", quota);
  const SessionId idle = OpenHolding("a", 6);
  const auto waiter = Wait(OpenSession("a"), 4);  // the device has room for it
  ASSERT_TRUE(waiter);
  EXPECT_THAT(Asked(), ElementsAre(idle));
  Suspend(idle);
  EXPECT_THAT(granted, ElementsAre(*waiter));
}

TEST_F(SwapLimitTest, NoneIsAskedWhoseMemoryTheLimitDoesNotCount) {
  SetQuota("a", {.limit_bytes = 4 * kGranule});
  SetQuota("other", Swappable());
  OpenHolding("other", 2);
  AcquireOne(OpenSession("a"), 4 * kGranule);
  ASSERT_TRUE(Wait(OpenSession("a"), 1));
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(SwapLimitTest, NoneIsAskedForALimitOfSegments) {
  Quota quota = Swappable();
  quota.max_segments = 1;
  SetQuota("a", quota);
  OpenHolding("a", 2);
  ASSERT_TRUE(Wait(OpenSession("a"), 1));
  EXPECT_THAT(Asked(), IsEmpty()) << "suspended segments count, too";
}

TEST_F(SwapLimitTest, AfterTheTenantsLimitTheDeviceLacksMore) {
  Quota quota = Swappable();
  quota.limit_bytes = 6 * kGranule;
  SetQuota("a", quota);
  SetQuota("other", Swappable());
  const SessionId own = OpenHolding("a", 4);
  now += absl::Seconds(1);
  const SessionId other = OpenHolding("other", 6);
  const auto waiter = Wait(OpenSession("a"), 5);
  ASSERT_TRUE(waiter);
  EXPECT_THAT(Asked(), UnorderedElementsAre(own, other));
  Suspend(own);
  EXPECT_THAT(granted, IsEmpty());
  Suspend(other);
  EXPECT_THAT(granted, ElementsAre(*waiter));
}

}  // namespace swap_tier_test
}  // namespace gpumemd
