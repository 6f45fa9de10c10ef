// SPDX-License-Identifier: Apache-2.0
// The pool's forecast of its growth, and its decision between moves and spare memory.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "client/pool/growth/forecast.h"
#include "client/pool/growth/spare.h"
#include "common/bytes.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace growth_test {

TEST(GrowthForecastTest, TheFirstGrowthIsNoBurst) {
  GrowthForecast forecast;
  EXPECT_EQ(forecast.Step(0, 8 * kMiB, 0), 0u);
}

TEST(GrowthForecastTest, StepsGrowWithTheBurstUpToAPartOfTheNeed) {
  GrowthForecast forecast;
  uint64_t needed = 0, reserved = 0, allocations = 0, growths = 0, last = 0;
  for (; needed < 64 * kGiB; ++allocations) {
    needed += 256 * kMiB;
    if (needed <= reserved) continue;
    const uint64_t step = forecast.Step(allocations, needed, reserved);
    const uint64_t leased = std::max(step, needed - reserved);
    forecast.Grew(leased);
    reserved += leased;
    ASSERT_LE(reserved, needed + needed / GrowthForecast::kSpareParts);
    last = step;
    ++growths;
  }
  EXPECT_GT(last, 4 * kGiB);
  EXPECT_LT(growths, 64u) << "of 256 blocks";
}

TEST(GrowthForecastTest, NothingBeyondTheNeedIfThatMuchIsSpare) {
  GrowthForecast forecast;
  forecast.Grew(20 * kGiB);
  EXPECT_EQ(forecast.Step(0, 11 * kGiB, 12 * kGiB), 0u);
  EXPECT_EQ(forecast.Step(0, 11 * kGiB, 13 * kGiB), 0u);
  EXPECT_EQ(forecast.Step(0, 11 * kGiB, 12 * kGiB - 2 * kMiB), 2 * kMiB);
}

TEST(GrowthForecastTest, ManyAllocationsWithoutGrowthEndABurst) {
  GrowthForecast forecast;
  forecast.Step(0, 0, 0);
  forecast.Grew(64 * kMiB);
  EXPECT_EQ(forecast.Step(GrowthForecast::kGap, 8 * kGiB, 8 * kGiB), 32 * kMiB);
  EXPECT_EQ(forecast.Step(2 * GrowthForecast::kGap + 1, 8 * kGiB, 8 * kGiB), 0u);
}

// The model keeps all events, and adds up those of the burst.
TEST(GrowthForecastTest, RandomEventsAsInAModel) {
  struct Event {
    uint64_t allocations, leased;
  };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    GrowthForecast forecast;
    std::vector<Event> burst;
    uint64_t allocations = 0, reserved = 0;
    for (int i = 0; i < 500; ++i) {
      allocations += random() % (random() % 8 == 0 ? 200 : 20);
      if (random() % 50 == 0) {
        forecast.Stop();
        burst.clear();
      }
      const uint64_t before = burst.empty() ? 0 : burst.back().allocations;
      if (!burst.empty() && allocations - before > GrowthForecast::kGap) burst.clear();
      uint64_t bytes = 0;
      for (const Event& event : burst) bytes += event.leased;
      const uint64_t needed = random() % 8 * reserved / 7;
      const auto most = static_cast<int64_t>(needed + needed / GrowthForecast::kSpareParts);
      const int64_t room = std::max<int64_t>(0, most - static_cast<int64_t>(reserved));
      ASSERT_EQ(forecast.Step(allocations, needed, reserved),
                std::min(bytes / GrowthForecast::kBurstParts, static_cast<uint64_t>(room)));
      const uint64_t leased = (random() % 128 + 1) * 2 * kMiB;
      forecast.Grew(leased);
      burst.push_back({allocations, leased});
      reserved += leased;
    }
  }
}

TEST(SparePolicyTest, AThirtySecondAtFirst) {
  EXPECT_EQ(SparePolicy().Enough(32 * kGiB), 33 * kGiB);
  EXPECT_EQ(SparePolicy().Enough(0), 0u);
}

TEST(SparePolicyTest, MovesAllTheTimeGrowItToATenth) {
  SparePolicy spare;
  for (uint64_t i = 0; i < 100'000; i += 20) spare.Moved(i, 8);
  EXPECT_EQ(spare.Enough(32 * kGiB), 35 * kGiB);
  spare.Reset();
  EXPECT_EQ(spare.Enough(32 * kGiB), 33 * kGiB);
}

TEST(SparePolicyTest, MovesNowAndThenDoNot) {
  SparePolicy spare;
  for (uint64_t i = 0; i < 1'000'000; i += 2'000) spare.Moved(i, 16);
  EXPECT_EQ(spare.Enough(32 * kGiB), 33 * kGiB);
}

// The model drains the time of each allocation by itself.
TEST(SparePolicyTest, RandomMovesAsInAModel) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    SparePolicy spare;
    uint64_t allocations = 0, steps = 0;
    int64_t spent = 0;
    for (int i = 0; i < 2'000; ++i) {
      const uint64_t since = random() % (random() % 4 == 0 ? 2'000 : 50);
      for (uint64_t one = 0; one < since && spent > 0; ++one) {
        spent = std::max<int64_t>(0, spent - static_cast<int64_t>(SparePolicy::kBudgetNs));
      }
      allocations += since;
      const uint64_t segments = random() % 32 + 1;
      spent += static_cast<int64_t>(SparePolicy::kMoveNs + segments * SparePolicy::kSegmentNs);
      if (spent > static_cast<int64_t>(SparePolicy::kCreditNs)) {
        spent = 0;
        steps = std::min(steps + 1, SparePolicy::kMostSteps);
      }
      spare.Moved(allocations, segments);
      if (random() % 500 == 0) {
        spare.Reset();
        spent = 0;
        steps = 0;
      }
      ASSERT_EQ(spare.Enough(64 * kGiB), (66 + steps) * kGiB);
      ASSERT_LE(spare.Enough(64 * kGiB), 70 * kGiB);
    }
  }
}

}  // namespace growth_test
}  // namespace gpumem::internal
