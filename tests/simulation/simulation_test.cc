// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/simulation/history.h"

namespace gpumemd::simulation {
namespace {

TEST(SimulationTest, MillionStepsBreakNothing) {
  constexpr uint64_t kWorlds = 2000;
  constexpr size_t kSteps = 500;
  size_t steps = 0;
  uint64_t kills = 0;
  for (uint64_t seed = 1; seed <= kWorlds; ++seed) {
    const Outcome outcome = RunWorld(seed, kSteps, Check::kFull);
    ASSERT_FALSE(outcome.violation)
        << *outcome.violation << "\nreplay: gpumem_simulation --seed=" << seed
        << " --steps=" << kSteps << "\nshrunk: " << Describe(seed, Shrink(seed, outcome.steps));
    steps += outcome.steps.size();
    kills += outcome.kills;
  }
  EXPECT_GE(steps, 1'000'000u);
  EXPECT_GT(kills, 1'000u);
}

TEST(SimulationTest, SeedHasOneHistory) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const Outcome first = RunWorld(seed, 1000, Check::kFull);
    // Other memory is in use meanwhile, and other checks are made.
    const Outcome other = RunWorld(seed + 1000, 100, Check::kNone);
    const Outcome second = RunWorld(seed, 1000, Check::kIncremental);
    EXPECT_EQ(first.digest, second.digest) << "of seed " << seed;
    EXPECT_NE(first.digest, other.digest);
    EXPECT_EQ(first.counts, second.counts);
    EXPECT_EQ(first.steps, second.steps);
    EXPECT_EQ(Repeat(seed, first.steps, Check::kNone).digest, first.digest);
  }
}

}  // namespace
}  // namespace gpumemd::simulation
