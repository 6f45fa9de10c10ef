// SPDX-License-Identifier: Apache-2.0
// Ends the program if the simulation itself is wrong.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace gpumemd::simulation {

inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "the simulation is wrong: %s\n", what);
  std::abort();
}

}  // namespace gpumemd::simulation
