// SPDX-License-Identifier: Apache-2.0
// Which conditions make the creation of memory slow: bare driver calls after frees of various
// sizes, by other threads, with pauses, and while a free is in progress.
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/bed.h"
#include "tests/bench/latency/latency.h"
#include "tests/bench/latency/maker.h"

namespace gpumem::bench {
namespace {

using Freer = Conditions::Freer;

struct Experiment {
  std::string name;
  Conditions conditions;
};

std::vector<Experiment> Experiments() {
  const absl::Duration ms = absl::Milliseconds(1), none = absl::ZeroDuration();
  std::vector<Experiment> all;
  const auto add = [&](const std::string& name, Conditions it) { all.push_back({name, it}); };
  const auto after = [](uint64_t bytes, Freer freer, absl::Duration pause, bool spins) {
    return Conditions{.bytes = bytes,
                      .freed_bytes = bytes,
                      .freed = 1,
                      .freer = freer,
                      .pause = pause,
                      .spins = spins};
  };
  for (const uint64_t bytes : {kGiB, 64 * kMiB}) {
    const std::string size = SizeName(bytes);
    add(size + ", nothing freed", {.bytes = bytes});
    add(size + ", nothing freed, after 1ms of sleep", {.bytes = bytes, .pause = ms});
    add(size + ", after 2MiB were made and freed", {.bytes = bytes, .little = true});
    add(size + ", by a new thread", {.bytes = bytes, .new_thread = true});
    add(size + " after a free of as much", after(bytes, Freer::kSelf, none, true));
    add(size + " after a free, 1ms spinning", after(bytes, Freer::kSelf, ms, true));
    add(size + " after a free, 1ms asleep", after(bytes, Freer::kSelf, ms, false));
    add(size + " after a free, 5ms asleep", after(bytes, Freer::kSelf, 5 * ms, false));
    add(size + " after a free, 20ms asleep", after(bytes, Freer::kSelf, 20 * ms, false));
    add(size + " after a free by another thread", after(bytes, Freer::kThread, none, true));
    add(size + " after a free by another thread, 1ms asleep",
        after(bytes, Freer::kThread, ms, false));
    add(size + " during a free by another thread", after(bytes, Freer::kDuring, none, true));
  }
  add("64MiB during a free of 1GiB",
      {.bytes = 64 * kMiB, .freed_bytes = kGiB, .freed = 1, .freer = Freer::kDuring});
  for (const int count : {8, 32}) {
    for (const absl::Duration pause : {none, 20 * ms}) {
      add(absl::StrCat("1GiB after frees of ", count, "GiB", pause == none ? "" : ", 20ms asleep"),
          {.bytes = kGiB,
           .freed_bytes = kGiB,
           .freed = count,
           .freer = Freer::kSelf,
           .pause = pause});
    }
  }
  return all;
}

struct Result {
  std::string name;
  Steps steps;
};
std::vector<Result>& Results() {
  static auto* const all = new std::vector<Result>;
  return *all;
}

void Explain(benchmark::State& state, const Experiment& experiment, bool with_context, int times) {
  static auto* const makers = new std::unique_ptr<Maker>[2];
  std::unique_ptr<Maker>& maker = makers[with_context ? 1 : 0];
  if (maker == nullptr) maker = std::make_unique<Maker>(with_context);
  for (auto _ : state) {
    Steps steps = OrDie(maker->Try(experiment.conditions, times), experiment.name);
    state.SetIterationTime(steps.create.Median() / 1e6);
    state.counters["create_p50_us"] = steps.create.Median();
    state.counters["create_max_us"] = steps.create.Quantile(1);
    state.counters["export_p50_us"] = steps.export_.Median();
    state.counters["release_p50_us"] = steps.release.Median();
    state.counters["free_p50_us"] = steps.free.Median();
    Results().push_back(
        {absl::StrCat(experiment.name, with_context ? " (with a context)" : ""), std::move(steps)});
  }
}

}  // namespace

void RegisterExplainMaking(const LatencyRun& run) {
  const int times = run.quick ? 1 : 10;
  for (const bool with_context : {false, true}) {
    for (const Experiment& experiment : Experiments()) {
      // To see whether the context makes a difference, some are enough.
      if (with_context &&
          (experiment.conditions.bytes != kGiB || experiment.conditions.freed > 1)) {
        continue;
      }
      Add(absl::StrCat("Explain/make/", experiment.name, with_context ? ", context" : ""), 1,
          [=](benchmark::State& state) { Explain(state, experiment, with_context, times); });
    }
  }
}

void PrintExplainMaking() {
  if (Results().empty()) return;
  std::cout << "\nMedians in microseconds of the bare calls, in a process without a daemon\n\n"
               "| condition | create | worst | export | release of the handle | the free before "
               "|\n|---|---:|---:|---:|---:|---:|\n";
  for (const auto& [name, steps] : Results()) {
    std::cout << absl::StreamFormat("| %s | %.1f | %.1f | %.1f | %.1f | %.1f |\n", name,
                                    steps.create.Median(), steps.create.Quantile(1),
                                    steps.export_.Median(), steps.release.Median(),
                                    steps.free.Median());
  }
}

}  // namespace gpumem::bench
