// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumemd::simulation {
namespace {

Outcome End(World& world, std::vector<Step> steps) {
  const uint64_t allocations = world.allocations();
  if (!world.violation()) world.Finish();
  return {.steps = std::move(steps),
          .violation = world.violation(),
          .digest = world.digest(),
          .kills = world.kills(),
          .allocations = allocations,
          .counts = world.counts()};
}

// What the code allocates once in a program is no part of a history.
void WarmUp() {
  static const bool done = [] {
    World world(/*seed=*/1, Check::kFull);
    Random random(1);
    for (size_t step = 0; step < 500 && !world.violation(); ++step) world.Do(world.Choose(random));
    if (!world.violation()) world.Finish();
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

Outcome RunWorld(uint64_t seed, size_t steps, Check check, bool allocations_kill) {
  WarmUp();
  World world(seed, check, allocations_kill);
  Random random(Mix(seed, 3));
  std::vector<Step> done;
  while (done.size() < steps && !world.violation()) {
    done.push_back(world.Choose(random));
    world.Do(done.back());
  }
  return End(world, std::move(done));
}

Outcome Repeat(uint64_t seed, const std::vector<Step>& steps, Check check, bool allocations_kill) {
  WarmUp();
  World world(seed, check, allocations_kill);
  std::vector<Step> done;
  for (const Step& step : steps) {
    if (world.violation()) break;
    if (world.Do(step)) done.push_back(step);
  }
  return End(world, std::move(done));
}

Outcome RepeatToAllocation(uint64_t seed, const std::vector<Step>& steps, Check check,
                           uint64_t allocation) {
  WarmUp();
  World world(seed, check);
  world.KillAtAllocation(allocation);
  std::vector<Step> done;
  for (const Step& step : steps) {
    if (world.violation() || world.allocations() >= allocation) break;
    if (world.Do(step)) done.push_back(step);
  }
  return End(world, std::move(done));
}

Outcome KillAtAllocations(uint64_t seed, size_t steps, uint64_t stride, uint64_t* deaths) {
  const Outcome script = RunWorld(seed, steps, Check::kFull);
  Outcome outcome = script;
  for (uint64_t number = 1; number <= script.allocations && !outcome.violation; number += stride) {
    outcome = RepeatToAllocation(seed, script.steps, Check::kNone, number);
    if (outcome.counts.contains("daemon killed at an allocation")) ++*deaths;
    if (outcome.violation)
      outcome.violation = absl::StrCat("killed at allocation ", number, ": ", *outcome.violation);
  }
  return outcome;
}

Outcome Shrink(uint64_t seed, std::vector<Step> steps) {
  Outcome best = Repeat(seed, steps, Check::kFull);
  if (!best.violation) return best;
  for (size_t part = std::max<size_t>(best.steps.size() / 2, 1);;
       part = std::max<size_t>(part / 2, 1)) {
    bool shorter = false;
    for (size_t at = 0; at < best.steps.size();) {
      std::vector<Step> fewer = best.steps;
      const auto begin = fewer.begin() + static_cast<ptrdiff_t>(at);
      fewer.erase(begin, begin + static_cast<ptrdiff_t>(std::min(part, fewer.size() - at)));
      Outcome outcome = Repeat(seed, fewer, Check::kFull);
      if (outcome.violation && outcome.steps.size() < best.steps.size()) {
        best = std::move(outcome);
        shorter = true;
      } else {
        at += part;
      }
    }
    if (part == 1 && !shorter) return best;
  }
}

std::string Describe(uint64_t seed, const Outcome& outcome) {
  std::string text = absl::StrCat("world ", seed, ", ", outcome.steps.size(), " steps\n");
  for (const Step& step : outcome.steps) absl::StrAppend(&text, "  ", ToString(step), "\n");
  absl::StrAppend(&text, outcome.violation.value_or("no violation"), "\n");
  return text;
}

}  // namespace gpumemd::simulation
