// SPDX-License-Identifier: Apache-2.0
// Runs the demo: starts the daemon and the workers, shows gpumemctl's view at each step, and counts
// the checks.
#pragma once

#include <string>

namespace gpumem::demo {

struct DemoOptions {
  std::string self;  // this program: the workers are copies of it
  std::string gpumemd;
  std::string gpumemctl;
  std::string backend = "auto";
};

// Returns how many checks held. Throws Failure at the first that did not, after every process has
// ended and every file is removed.
int RunDemo(const DemoOptions& options);

}  // namespace gpumem::demo
