// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/latency/pairs.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/bed.h"
#include "tests/bench/latency/process_stats.h"

namespace gpumem::bench {
namespace {

constexpr int kQuickPairs = 3;
constexpr int kCountedCalls = 20;

struct Result {
  PairRow row;
  PairSamples::Summary summary;
  Switches floor, call;  // a call
};
std::vector<Result>& Results() {
  static auto* const all = new std::vector<Result>;
  return *all;
}

using Side = void (Sides::*)(Stopwatch&);

double Microseconds(Sides& sides, Side side) {
  Stopwatch watch(/*counts_switches=*/false);
  (sides.*side)(watch);
  return absl::ToDoubleMicroseconds(watch.time());
}

Switches CountSwitches(Sides& sides, Side side, int calls) {
  Switches sum;
  for (int i = 0; i < calls; ++i) {
    Stopwatch watch(/*counts_switches=*/true);
    (sides.*side)(watch);
    sum.client += watch.switches().client / calls;
    sum.daemon += watch.switches().daemon / calls;
    sum.owner += watch.switches().owner / calls;
  }
  return sum;
}

void Report(benchmark::State& state, const Result& result) {
  const PairSamples::Summary& summary = result.summary;
  auto& counters = state.counters;
  counters["p50_us"] = summary.call_median;
  counters["p99_us"] = summary.call_p99;
  counters["floor_p50_us"] = summary.floor_median;
  counters["floor_p99_us"] = summary.floor_p99;
  counters["ratio"] = summary.ratio;
  counters["ratio_q1"] = summary.ratio_q1;
  counters["ratio_q3"] = summary.ratio_q3;
  counters["pairs"] = static_cast<double>(summary.pairs);
  counters["switches_client"] = result.call.client;
  counters["switches_daemon"] = result.call.daemon;
  counters["floor_switches_client"] = result.floor.client;
  counters["floor_switches_owner"] = result.floor.owner;
}

void Run(benchmark::State& state, const PairRow& row, int pairs) {
  const std::unique_ptr<Sides> sides = row.begin();
  PairSamples samples;
  // Not counted: the first of each.
  Microseconds(*sides, &Sides::Floor);
  Microseconds(*sides, &Sides::Call);
  int turn = 0;
  for (auto _ : state) {
    // Each follows the other one, and one of its kind, equally often.
    double floor = 0, call = 0;
    const bool floor_first = turn++ % 2 == 0;
    if (floor_first) floor = Microseconds(*sides, &Sides::Floor);
    call = Microseconds(*sides, &Sides::Call);
    if (!floor_first) floor = Microseconds(*sides, &Sides::Floor);
    samples.Add(floor, call);
    state.SetIterationTime(call / 1e6);
  }
  // Separately, since counting takes time between the calls.
  const int counted = std::clamp(pairs / 4, 1, kCountedCalls);
  Result result = {.row = row, .summary = samples.Summarize(), .floor = {}, .call = {}};
  result.floor = CountSwitches(*sides, &Sides::Floor, counted);
  result.call = CountSwitches(*sides, &Sides::Call, counted);
  Report(state, result);
  Results().push_back(std::move(result));
}

}  // namespace

Switches Stopwatch::Now() {
  const auto count = [](pid_t pid) { return static_cast<double>(ContextSwitches(pid)); };
  return {.client = count(getpid()),
          .daemon = count(bed->daemon->pid()),
          .owner = count(bed->owner->pid())};
}

void Stopwatch::Add(const Switches& before) {
  const Switches now = Now();
  switches_.client += now.client - before.client;
  switches_.daemon += now.daemon - before.daemon;
  switches_.owner += now.owner - before.owner;
}

void AddPairs(const LatencyRun& run, PairRow row) {
  const int pairs = run.quick ? std::min(kQuickPairs, row.pairs) : row.pairs;
  const std::string name = row.name;
  Add(name, pairs,
      [row = std::move(row), pairs](benchmark::State& state) { Run(state, row, pairs); });
}

void PrintPairs() {
  if (Results().empty()) return;
  std::cout
      << "\nMedians in microseconds; the ratio of the medians, and the quartiles of the "
         "pairs' ratios. Switches: context switches of a call in the client and in the "
         "daemon.\n\n"
         "| work | floor | floor us | p99 | us | p99 | ratio | quartiles | to reach | pairs | "
         "switches |\n|---|---|---:|---:|---:|---:|---:|---|---|---:|---:|\n";
  for (const Result& result : Results()) {
    const PairSamples::Summary& s = result.summary;
    std::cout << absl::StreamFormat(
        "| %s | %s | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f to %.2f | %s | %d | %.1f + %.1f |\n",
        result.row.work, result.row.floor, s.floor_median, s.floor_p99, s.call_median, s.call_p99,
        s.ratio, s.ratio_q1, s.ratio_q3, result.row.reach, s.pairs, result.call.client,
        result.call.daemon);
  }
}

}  // namespace gpumem::bench
