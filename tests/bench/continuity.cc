// SPDX-License-Identifier: Apache-2.0
// The daemon's death: how long until another serves, with how many segments to take over.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/bench/bed.h"
#include "tests/bench/benchmarks.h"
#include "tests/support/kept_daemon.h"

namespace gpumem::bench {
namespace {

constexpr char kFloor[] = "restart/0";

// Measures from SIGKILL until a client that held all of the segments has an answer to its next
// call.
void RestartAfterKill(benchmark::State& state, const std::string& backend, uint64_t segments) {
  const std::string name = absl::StrCat("restart/", segments);
  testing::KeptDaemon::Options options;
  options.backend = backend;
  options.program = "gpumemd";
  auto daemon = OrDie(testing::KeptDaemon::Start(options), "keeper");
  auto client = OrDie(Client::Connect({.runtime_dir = daemon->runtime_dir()}), "connect");
  std::vector<Segment> held;
  while (held.size() < segments) {
    const auto more = static_cast<int>(std::min<uint64_t>(250, segments - held.size()));
    auto acquired = OrDie(client->AcquireMany({.bytes = 2 * kMiB}, more), "acquire");
    for (Segment& segment : acquired) held.push_back(std::move(segment));
  }
  for (auto _ : state) {
    Count(state, name, Time([&] {
            OrDie(daemon->Kill(), "kill");
            OrDie(client->GetUsage(), "usage");
          }));
  }
  Report(state, name);
}

}  // namespace

void RegisterContinuity(const std::string& backend) {
  for (const uint64_t segments : {0, 1, 100, 1000}) {
    Add(absl::StrCat("RestartAfterKill/", segments), 10,
        [=](auto& state) { RestartAfterKill(state, backend, segments); });
  }
}

void PrintContinuity() {
  auto& s = AllSamples();
  PrintTableHead("the daemon's death, until its clients are served again");
  for (const uint64_t segments : {1, 100, 1000}) {
    PrintRow(absl::StrCat("with segments: ", segments),
             s[absl::StrCat("restart/", segments)].Median(), "with none", s[kFloor].Median());
  }
}

}  // namespace gpumem::bench
