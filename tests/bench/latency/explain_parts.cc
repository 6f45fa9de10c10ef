// SPDX-License-Identifier: Apache-2.0
// The parts of what a worker does at its start: it connects, calls for the first time, and maps 60
// segments, by one thread or several.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/bed.h"
#include "tests/bench/latency/latency.h"

namespace gpumem::bench {
namespace {

constexpr uint64_t kPart = 20 * kMiB;
constexpr int kParts = 60;

Samples& Step(const std::string& name) { return AllSamples()["explain/" + name]; }

void Connect(benchmark::State& state) {
  for (auto _ : state) {
    std::unique_ptr<Client> client;
    const auto call = [&] { OrDie(client->GetUsage().status(), "usage"); };
    Step("connect").Add(Time([&] { client = OrDie(bed->daemon->Connect("retained"), "connect"); }));
    Step("first call").Add(Time(call));
    Step("second call").Add(Time(call));
    for (int i = 0; i < 10; ++i) call();
    Step("later call").Add(Time(call));
    Step("end of the session").Add(Time([&] { client.reset(); }));
    state.SetIterationTime(1e-6);
  }
  for (const char* step : {"connect", "first call", "second call", "later call"}) {
    state.counters[absl::StrCat(step, "_p50_us")] = Step(step).Median();
  }
}

// Maps the parts by so many threads at once: each a part of them, into addresses reserved before.
void MapParallel(benchmark::State& state, int threads) {
  const bool cuda = OnGpu();
  const Handed handed =
      OrDie(bed->owner->Make(bed->device.kinds.front(), kPart, kParts, true), "make");
  MapOptions options;
  options.range =
      OrDie(cuda ? ReserveCudaAddresses(kPart * kParts) : ReserveHostAddresses(kPart * kParts),
            "reserve");
  if (cuda) options.device_uuids = {bed->device.uuid};
  const std::string name = absl::StrCat("map 60 of 20MiB, threads: ", threads);
  const auto map = [&](int begin, int end) {
    std::vector<MapRequest> requests;
    for (int i = begin; i < end; ++i) {
      requests.push_back({.fd = handed.fds.at(static_cast<size_t>(i)).get(), .bytes = kPart});
    }
    MapOptions mine = options;
    mine.address =
        reinterpret_cast<void*>(options.range->base() + kPart * static_cast<uint64_t>(begin));
    return OrDie(cuda ? MapCuda(requests, mine) : MapHost(requests, mine), "map");
  };
  for (auto _ : state) {
    std::vector<Mappings> all(static_cast<size_t>(threads));
    const absl::Duration time = Time([&] {
      std::vector<std::thread> others;
      const auto one = [&](int thread) {
        all[static_cast<size_t>(thread)] =
            map(kParts * thread / threads, kParts * (thread + 1) / threads);
      };
      for (int thread = 1; thread < threads; ++thread) others.emplace_back(one, thread);
      one(0);
      for (std::thread& other : others) other.join();
    });
    Step(name).Add(time);
    state.SetIterationTime(absl::ToDoubleSeconds(time));
  }
  state.counters["p50_us"] = Step(name).Median();
  OrDie(bed->owner->Drop(), "drop");
}

}  // namespace

void RegisterExplainParts(const LatencyRun& run) {
  Add("Explain/connect", run.quick ? 3 : 50, Connect);
  for (const int threads : {1, 2, 4}) {
    Add(absl::StrCat("Explain/parallel/threads:", threads), run.quick ? 3 : 30,
        [=](benchmark::State& state) { MapParallel(state, threads); });
  }
}

void PrintExplainParts() {
  bool headed = false;
  for (const auto& [name, samples] : AllSamples()) {
    if (name.rfind("explain/", 0) != 0 || samples.empty()) continue;
    if (!std::exchange(headed, true)) {
      std::cout << "\nParts of a worker's start, microseconds\n\n| part | median | p99 |\n"
                   "|---|---:|---:|\n";
    }
    std::cout << absl::StreamFormat("| %s | %.1f | %.1f |\n", name.substr(8), samples.Median(),
                                    samples.Quantile(0.99));
  }
}

}  // namespace gpumem::bench
