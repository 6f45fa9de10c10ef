// SPDX-License-Identifier: Apache-2.0
// suspendable RUNTIME_DIR: holds memory that operators may suspend or demote. Prints the number of
// its session and ends with its input.
#include <cstdio>
#include <vector>

#include "gpumem/client.h"
#include "gpumem/suspend.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  auto client = gpumem::Client::Connect({.runtime_dir = argv[1], .name = "suspendable"});
  if (!client.ok()) return 1;
  auto segment = (*client)->Acquire({.bytes = 2 << 20});
  if (!segment.ok()) return 1;
  const auto watch = (*client)->ServeSuspensions(
      {.segments = [&] { return std::vector<gpumem::Segment*>{&*segment}; },
       .pause = [] { return absl::OkStatus(); },
       .proceed = [] {}});
  if (!watch.ok()) return 1;
  std::printf("%llu\n", static_cast<unsigned long long>((*client)->session_id()));
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
