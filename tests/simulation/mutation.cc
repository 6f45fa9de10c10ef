// SPDX-License-Identifier: Apache-2.0
// Puts each fault of daemon/core/mutant.h into the core, and checks that the simulation finds it.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "daemon/core/mutant.h"
#include "tests/simulation/history.h"
#include "tests/simulation/require.h"

namespace gpumemd::simulation {
namespace {

#ifdef GPUMEM_MUTANTS
void Activate(Fault fault) { present_fault = fault; }
#else
void Activate(Fault) {
  std::fprintf(stderr, "it was compiled without GPUMEM_MUTANTS\n");
  std::exit(2);
}
#endif

// The rarest faults were found in the 200th world in the mean.
constexpr uint64_t kWorlds = 2000, kWorldsWithoutFault = 240;
constexpr size_t kSteps = 1000;
constexpr unsigned kSeconds = 120;

constexpr std::array kNames = {
#define GPUMEM_FAULT(name) #name,
    GPUMEM_FAULTS(GPUMEM_FAULT)
#undef GPUMEM_FAULT
};

// The child's exit statuses, beside kSimulationIsWrong.
constexpr int kStatusFound = 10, kStatusNotFound = 11;

// Runs worlds until one fails.
int Search(Fault fault) {
  Activate(fault);
  // A fault may be one that never ends.
  alarm(fault == Fault::kNone ? 4 * kSeconds : kSeconds);
  const uint64_t worlds = fault == Fault::kNone ? kWorldsWithoutFault : kWorlds;
  for (uint64_t seed = 1; seed <= worlds; ++seed) {
    const Outcome outcome = RunWorld(seed, kSteps, Check::kFull);
    if (!outcome.violation) continue;
    Activate(Fault::kNone);
    if (RunWorld(seed, kSteps, Check::kFull).violation) {
      std::printf("world %llu fails without it, too: ", static_cast<unsigned long long>(seed));
      return kSimulationIsWrong;
    }
    Activate(fault);
    std::printf("in world %llu: %s", static_cast<unsigned long long>(seed),
                outcome.violation->c_str());
    if (fault == static_cast<Fault>(1)) {
      const Outcome shrunk = Shrink(seed, outcome.steps);
      if (!shrunk.violation || shrunk.steps.size() >= outcome.steps.size()) return kStatusNotFound;
      const Outcome again = Repeat(seed, shrunk.steps, Check::kFull);
      if (again.violation != shrunk.violation) return kStatusNotFound;
      std::printf(" (shrunk from %zu to %zu steps)", outcome.steps.size(), shrunk.steps.size());
    }
    return kStatusFound;
  }
  return kStatusNotFound;
}

// How a search ended.
enum class End { kFound, kCrashed, kNotFound, kLate, kWrong };

End SearchInChild(Fault fault, bool quiet) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    if (quiet) dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    const int result = Search(fault);
    std::fflush(stdout);
    _exit(result);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) {
    const int result = WEXITSTATUS(status);
    return result == kStatusFound      ? End::kFound
           : result == kStatusNotFound ? End::kNotFound
                                       : End::kWrong;
  }
  if (WTERMSIG(status) == SIGALRM) return End::kLate;
  // The kernel may have killed it for want of memory.
  if (WTERMSIG(status) == SIGKILL) return End::kWrong;
  std::printf("ends the daemon with signal %d", WTERMSIG(status));
  return End::kCrashed;
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::printf("no fault: ");
    const End end = SearchInChild(Fault::kNone, /*quiet=*/false);
    std::printf(end == End::kNotFound ? "nothing found\n" : "FAILS, so the rest means nothing\n");
    if (end != End::kNotFound) return 1;
  }
  size_t count = 0, missed = 0, crashed = 0;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (argc > 1 && std::strcmp(argv[1], kNames[i]) != 0) continue;
    ++count;
    std::printf("%s: ", kNames[i]);
    const auto begun = std::chrono::steady_clock::now();
    const End end = SearchInChild(static_cast<Fault>(i + 1), /*quiet=*/argc < 2);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    const bool found = end == End::kFound || end == End::kCrashed;
    if (!found) ++missed;
    if (end == End::kCrashed) ++crashed;
    const char* const result = found                ? ""
                               : end == End::kWrong ? "the SIMULATION ends"
                               : end == End::kLate  ? "NOT FOUND in time"
                                                    : "NOT FOUND";
    std::printf("%s (%.1f s)\n", result, took.count());
  }
  std::printf("%zu of %zu faults found, %zu of them as they end the daemon\n", count - missed,
              count, crashed);
  return missed == 0 && count > 0 ? 0 : 1;
}

}  // namespace
}  // namespace gpumemd::simulation

int main(int argc, char** argv) { return gpumemd::simulation::Main(argc, argv); }
