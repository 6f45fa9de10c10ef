// SPDX-License-Identifier: Apache-2.0
// Ends the program, with status kSimulationIsWrong, if the simulation itself is wrong.
#pragma once

#include <unistd.h>

#include <cstdio>

namespace gpumemd::simulation {

inline constexpr int kSimulationIsWrong = 70;

inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "the simulation is wrong: %s\n", what);
  std::fflush(stdout);
  _exit(kSimulationIsWrong);
}

}  // namespace gpumemd::simulation
