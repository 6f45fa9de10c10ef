// Tells the demo's story: starts the daemon and the workers, shows what gpumemctl sees
// at each step, and counts what was checked.
#pragma once

#include <string>

namespace gpumem::demo {

struct DemoOptions {
  std::string self;  // this program: the workers are copies of it
  std::string gpumemd;
  std::string gpumemctl;
  std::string backend = "auto";
};

// Returns how many checks held. Throws Failure at the first that did not; by then every
// process is gone and every file removed.
int RunDemo(const DemoOptions& options);

}  // namespace gpumem::demo
