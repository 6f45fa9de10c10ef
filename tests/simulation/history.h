// SPDX-License-Identifier: Apache-2.0
// Histories of simulated worlds: made from a seed, repeated, and shrunk to the steps that a failure
// needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/world.h"

namespace gpumemd::simulation {

struct Outcome {
  std::vector<Step> steps;  // done
  std::optional<std::string> violation;
  uint64_t digest = 0;
  uint64_t kills = 0;
  uint64_t allocations = 0;                // of daemons, during the steps
  std::map<std::string, uint64_t> counts;  // World::counts
};

// Runs the world of this seed for so many steps, or to the first violation.
Outcome RunWorld(uint64_t seed, size_t steps, Check check, bool allocations_kill = true);
// Does these steps in the world of this seed, as far as they can be done.
Outcome Repeat(uint64_t seed, const std::vector<Step>& steps, Check check,
               bool allocations_kill = true);
// As Repeat, with the end of the steps at a daemon's death at this allocation.
Outcome RepeatToAllocation(uint64_t seed, const std::vector<Step>& steps, Check check,
                           uint64_t allocation);
// Does the steps of a world once for each `stride`-th allocation that its daemons make in them, and
// has that be a daemon's death, after which nothing else happens. Returns the first that fails,
// else the last one. `deaths`: how many there were.
Outcome KillAtAllocations(uint64_t seed, size_t steps, uint64_t stride, uint64_t* deaths);
// Leaves out steps as long as the rest fails (delta debugging: Zeller, Hildebrandt, 2002).
Outcome Shrink(uint64_t seed, std::vector<Step> steps);
// Returns the steps, one a line, with what failed.
std::string Describe(uint64_t seed, const Outcome& outcome);

}  // namespace gpumemd::simulation
