// SPDX-License-Identifier: Apache-2.0
// gpumem_simulation: simulates nodes with daemons that are killed, and checks all invariants.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "tests/simulation/history.h"

namespace gpumemd::simulation {
namespace {

struct Options {
  uint64_t seed = 1;
  uint64_t worlds = 1;
  uint64_t steps = 1000;
  std::string check = "full";
  double minutes = 0;
  std::string checkpoint;
  bool repeatable = false;
  bool counts = false;
  uint64_t allocations = 0;
};

struct Progress {
  uint64_t worlds = 0, steps = 0, kills = 0, digest = 0;
};

volatile std::sig_atomic_t interrupted = 0;

// A checkpoint counts only for the same flags.
std::string Heading(const Options& options) {
  return absl::StrFormat("seed %d steps %d check %s", options.seed, options.steps, options.check);
}

bool Load(const Options& options, Progress& progress) {
  std::ifstream file(options.checkpoint);
  if (!file) return true;  // it is the first time
  std::string heading;
  std::getline(file, heading);
  if (heading != Heading(options)) return false;
  return bool(file >> progress.worlds >> progress.steps >> progress.kills >> progress.digest);
}

void Save(const Options& options, const Progress& progress) {
  if (options.checkpoint.empty()) return;
  const std::string next = options.checkpoint + ".next";
  std::ofstream(next) << Heading(options) << "\n"
                      << progress.worlds << " " << progress.steps << " " << progress.kills << " "
                      << progress.digest << "\n";
  std::rename(next.c_str(), options.checkpoint.c_str());
}

int Run(const Options& options) {
  const Check check = options.check == "full"          ? Check::kFull
                      : options.check == "incremental" ? Check::kIncremental
                                                       : Check::kNone;
  Progress progress;
  if (!options.checkpoint.empty() && !Load(options, progress)) {
    std::fprintf(stderr, "%s is of other flags\n", options.checkpoint.c_str());
    return 2;
  }
  using Clock = std::chrono::steady_clock;
  const auto begun = Clock::now();
  auto saved = begun;
  const auto seconds = [&](Clock::time_point since) {
    return std::chrono::duration<double>(Clock::now() - since).count();
  };
  const double limit = options.minutes * 60;
  const uint64_t before = progress.steps;
  int result = 0;
  std::map<std::string, uint64_t> counts;
  for (; progress.worlds < options.worlds; ++progress.worlds) {
    if (interrupted != 0 || (limit > 0 && seconds(begun) > limit)) break;
    const uint64_t seed = options.seed + progress.worlds;
    const Outcome outcome = RunWorld(seed, options.steps, check, !options.repeatable);
    progress.steps += outcome.steps.size();
    progress.kills += outcome.kills;
    for (const auto& [what, count] : outcome.counts) counts[what] += count;
    progress.digest = Mix(progress.digest, outcome.digest);
    if (outcome.violation) {
      std::printf("world %d fails: %s\nreplay: gpumem_simulation --seed=%d --steps=%d --check=%s\n",
                  static_cast<int>(seed), outcome.violation->c_str(), static_cast<int>(seed),
                  static_cast<int>(options.steps), options.check.c_str());
      std::fflush(stdout);
      std::printf("shrunk: %s", Describe(seed, Shrink(seed, outcome.steps)).c_str());
      result = 1;
      break;
    }
    if (seconds(saved) > 10) {
      Save(options, progress);
      saved = Clock::now();
    }
  }
  Save(options, progress);
  for (const auto& [what, count] : counts) {
    if (options.counts)
      std::printf("%9llu %s\n", static_cast<unsigned long long>(count), what.c_str());
  }
  const double took = seconds(begun);
  std::printf("%llu worlds, %llu steps, %llu kills, digest %016llx; %.0f steps a second\n",
              static_cast<unsigned long long>(progress.worlds),
              static_cast<unsigned long long>(progress.steps),
              static_cast<unsigned long long>(progress.kills),
              static_cast<unsigned long long>(progress.digest),
              static_cast<double>(progress.steps - before) / took);
  return result;
}

int RunAllocations(const Options& options) {
  uint64_t deaths = 0;
  for (uint64_t world = 0; world < options.worlds; ++world) {
    const uint64_t seed = options.seed + world;
    const Outcome outcome = KillAtAllocations(seed, options.steps, options.allocations, &deaths);
    if (!outcome.violation) continue;
    std::printf("%s", Describe(seed, outcome).c_str());
    return 1;
  }
  std::printf("%llu worlds, %llu daemons killed at allocations\n",
              static_cast<unsigned long long>(options.worlds),
              static_cast<unsigned long long>(deaths));
  return 0;
}

}  // namespace
}  // namespace gpumemd::simulation

int main(int argc, char** argv) {
  gpumemd::simulation::Options options;
  CLI::App app("Simulates nodes with daemons that are killed, and checks all invariants");
  app.add_option("--seed", options.seed, "Number of the first world");
  app.add_option("--worlds", options.worlds, "Simulate N worlds, one after another");
  app.add_option("--steps", options.steps, "Steps of each world");
  app.add_option("--check", options.check, "Check after each step: full, incremental or none")
      ->check(CLI::IsMember({"full", "incremental", "none"}));
  app.add_option("--minutes", options.minutes, "Begin no world after N minutes; 0: no limit");
  app.add_option("--checkpoint", options.checkpoint, "Continue from FILE, and keep it up to date");
  app.add_option("--every-allocation", options.allocations,
                 "Kill a daemon at each N-th allocation of each world");
  app.add_flag("--repeatable", options.repeatable, "Kill no daemon at an allocation");
  app.add_flag("--counts", options.counts, "Print what clients were answered");
  CLI11_PARSE(app, argc, argv);
  // It ends with the present world, and a checkpoint.
  for (const int signal : {SIGINT, SIGTERM}) {
    std::signal(signal, [](int) { gpumemd::simulation::interrupted = 1; });
  }
  std::printf("begins\n");
  std::fflush(stdout);
  if (options.allocations > 0) return gpumemd::simulation::RunAllocations(options);
  return gpumemd::simulation::Run(options);
}
