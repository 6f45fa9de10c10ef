// SPDX-License-Identifier: Apache-2.0
// suspendable MIB: holds memory, and suspends and resumes it when an operator asks. Prints what it
// did: "held", "suspended", and "resumed" if the bytes are the same.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "gpumem/client.h"
#include "gpumem/suspend.h"

namespace {

void Tell(const char* what) {
  std::puts(what);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 64;
  auto client = gpumem::Client::Connect();
  if (!client.ok()) return std::fputs(client.status().ToString().c_str(), stderr), 1;
  auto memory = (*client)->Acquire({.bytes = std::strtoull(argv[1], nullptr, 10) << 20});
  if (!memory.ok()) return std::fputs(memory.status().ToString().c_str(), stderr), 1;
  auto* text = static_cast<char*>(memory->data());
  std::strcpy(text, "kept");
  const auto served = (*client)->ServeSuspensions(
      {.segments = [&] { return std::vector<gpumem::Segment*>{&*memory}; },
       .quiesce = [] { return absl::OkStatus(); },
       .suspended = [](gpumem::SuspensionCause) { Tell("suspended"); },
       .resumed = [&] { Tell(std::strcmp(text, "kept") == 0 ? "resumed" : "lost"); }});
  if (!served.ok()) return std::fputs(served.status().ToString().c_str(), stderr), 1;
  Tell("held");
  while (true) pause();
}
