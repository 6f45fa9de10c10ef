// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tests/simulation/daemon.h"
#include "tests/simulation/history.h"

namespace gpumemd::simulation {
namespace {

// What a million steps must have seen: a simulation in which calls fail proves nothing.
const std::map<std::string, uint64_t>& LeastCounts() {
  static const auto* const counts = new std::map<std::string, uint64_t>{
      {"acquire OK", 5000},
      {"open OK", 500},
      {"attach OK", 1000},
      {"attach DEADLINE_EXCEEDED", 500},
      {"connect OK", 10000},
      {"prepare OK", 200},
      {"publish OK", 400},
      {"release OK", 2000},
      {"resume OK", 100},
      {"share OK", 1000},
      {"suspend OK", 200},
      {"unpublish OK", 50},
      {"daemon started", 3000},
      {"daemon killed", 800},
      {"daemon killed while it starts", 200},
      {"daemon killed at an allocation", 200},
      {"session ended, as its client did not read", 50},
  };
  return *counts;
}

// A sanitizer takes many times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kPart = 20;
#else
constexpr uint64_t kPart = 1;
#endif

TEST(SimulationTest, MillionStepsBreakNothing) {
  constexpr uint64_t kWorlds = 2000 / kPart;
  constexpr size_t kSteps = 500;
  size_t steps = 0;
  std::map<std::string, uint64_t> counts;
  for (uint64_t seed = 1; seed <= kWorlds; ++seed) {
    const Outcome outcome = RunWorld(seed, kSteps, Check::kFull);
    ASSERT_FALSE(outcome.violation)
        << *outcome.violation << "\nreplay: gpumem_simulation --seed=" << seed
        << " --steps=" << kSteps << "\nshrunk: " << Describe(seed, Shrink(seed, outcome.steps));
    steps += outcome.steps.size();
    for (const auto& [what, count] : outcome.counts) counts[what] += count;
  }
  EXPECT_GE(steps, 1'000'000u / kPart);
  for (const auto& [what, least] : LeastCounts()) {
    EXPECT_GE(counts[what], kPart == 1 ? least : 1) << what;
  }
}

TEST(SimulationTest, SeedHasOneHistory) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto run = [](uint64_t of, size_t steps, Check check) {
      return RunWorld(of, steps, check, /*allocations_kill=*/false);
    };
    const Outcome first = run(seed, 1000, Check::kFull);
    // Other memory is in use meanwhile, and other checks are made.
    const Outcome other = run(seed + 1000, 100, Check::kNone);
    const Outcome second = run(seed, 1000, Check::kIncremental);
    EXPECT_EQ(first.digest, second.digest) << "of seed " << seed;
    EXPECT_NE(first.digest, other.digest);
    EXPECT_EQ(first.counts, second.counts);
    EXPECT_EQ(first.steps, second.steps);
    EXPECT_EQ(Repeat(seed, first.steps, Check::kNone, /*allocations_kill=*/false).digest,
              first.digest);
  }
}

// GPUMEM_EVERY_ALLOCATION=1 in the environment takes each one, in place of each 5th.
TEST(SimulationTest, DaemonMayDieAtAnyAllocation) {
  constexpr size_t kSteps = 400;
  const uint64_t stride = std::getenv("GPUMEM_EVERY_ALLOCATION") != nullptr ? 1 : 5;
  uint64_t deaths = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Outcome outcome = KillAtAllocations(seed, kSteps, stride, &deaths);
    ASSERT_FALSE(outcome.violation) << Describe(seed, outcome);
  }
  RecordProperty("deaths", static_cast<int>(deaths));
  EXPECT_GT(deaths, 1000u);
}

TEST(SimulationTest, ThreadThatWaitsForeverIsNoticed) {
  Driver driver({kGranule});
  Store store;
  Surroundings surroundings;
  surroundings.driver = &driver;
  surroundings.store = &store;
  auto daemon = std::make_unique<Daemon>(&surroundings);
  bool goes_on = false;
  daemon->Run([&] { daemon->fibers().WaitUntil([&] { return goes_on; }); });
  daemon->KillIn(0, std::nullopt);
  EXPECT_FALSE(daemon->Reap());
  goes_on = true;
  EXPECT_TRUE(daemon->Reap());
}

}  // namespace
}  // namespace gpumemd::simulation
