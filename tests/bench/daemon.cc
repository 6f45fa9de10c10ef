// SPDX-License-Identifier: Apache-2.0
// The daemon's own work and its cost.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cuda/device_copy.h"
#include "common/unix_channel.h"
#include "tests/bench/bed.h"
#include "tests/bench/benchmarks.h"
#include "tests/support/child.h"

namespace gpumem::bench {
namespace {

using testing::Child;

// Measures from the reaping of a killed holder until another client has its bytes.
void Reclaim(benchmark::State& state) {
  const std::string name = "reclaim";
  const uint64_t all = OnGpu() ? 32 * kGiB : 2 * kGiB;
  for (auto _ : state) {
    Child holder = Child::Self({"--role", "holder", bed->daemon->runtime_dir(), absl::StrCat(all)});
    auto ready = OrDie(ReceiveMessage(holder.channel(), absl::Now() + absl::Seconds(60)), "holder");
    if (ready.bytes != "ready") OrDie(absl::InternalError(ready.bytes), "holder");
    std::atomic<bool> killed = false;
    absl::Time granted;
    std::thread waiter([&] {
      while (true) {
        auto segment = bed->retained->Acquire({.bytes = all});
        if (segment.ok()) {
          granted = absl::Now();
          if (!killed) OrDie(absl::InternalError("granted before the kill"), "reclaim");
          return;
        }
      }
    });
    const absl::Time kill_at = absl::Now();
    killed = true;
    holder.Signal(SIGKILL);
    // Not yet a reaping: WNOWAIT leaves it to Child.
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(holder.pid()), &info, WEXITED | WNOWAIT);
    const absl::Time reaped = absl::Now();
    waiter.join();
    Count(state, name, std::max(granted - reaped, absl::ZeroDuration()));
    Count(state, "kill to grant", granted - kill_at, false);
    Count(state, "kill to exit", reaped - kill_at, false);
  }
  Report(state, name);
  state.counters["kill_to_grant_p50_us"] = AllSamples()["kill to grant"].Median();
  state.counters["kill_to_exit_p50_us"] = AllSamples()["kill to exit"].Median();
}

void TenThousandSegments(benchmark::State& state) {
  for (auto _ : state) {
    std::vector<Segment> segments;
    const absl::Duration time = Time([&] {
      for (int left = 10000; left > 0; left -= 250) {
        auto more = OrDie(bed->fresh->AcquireMany({.bytes = 2 * kMiB}, 250), "acquire");
        for (Segment& segment : more) segments.push_back(std::move(segment));
      }
    });
    state.SetIterationTime(absl::ToDoubleSeconds(time));
    state.counters["daemon_resident_MiB"] =
        static_cast<double>(testing::ResidentBytes(bed->daemon->pid())) / kMiB;
    state.counters["daemon_fds"] = bed->daemon->fds();
    segments.clear();
    Settle(*bed->fresh);
  }
  state.counters["daemon_idle_MiB"] = static_cast<double>(bed->idle_resident) / kMiB;
}

}  // namespace

int RunHolder(const std::vector<std::string>& args) {
  const auto say = [](const std::string& text) {
    SendMessage(3, text, {}, absl::Now() + absl::Seconds(10)).IgnoreError();
  };
  auto client = Client::Connect({.runtime_dir = args.at(0), .tenant = "retained"});
  uint64_t bytes = 0;
  if (!client.ok() || !absl::SimpleAtoi(args.at(1), &bytes)) return say("no client"), 1;
  // All but less than that, so that the next one cannot have it at the same time.
  auto usage = (*client)->GetUsage();
  const uint64_t most = usage.ok() ? usage->devices[0].limit_bytes : 0;
  std::vector<Segment> segments;
  while (true) {
    auto segment = (*client)->Acquire({.bytes = bytes});
    if (!segment.ok()) break;
    segments.push_back(*std::move(segment));
  }
  if (segments.empty()) return say(absl::StrCat("nothing of ", most)), 1;
  if (segments.front().backend() == Backend::kCuda) {
    // With a context and work in flight, as a worker has when it is killed.
    auto copier = DeviceCopier::ForCuda(segments.front().device_uuid());
    if (!copier.ok() ||
        !(*copier)->Fill(segments.front().data(), 1, segments.front().size()).ok()) {
      return say("cannot write"), 1;
    }
    say("ready");
    while ((*copier)->Fill(segments.front().data(), 1, segments.front().size()).ok()) {
    }
    return 1;
  }
  say("ready");
  pause();
  return 0;
}

void RegisterDaemon() {
  Add("Reclaim", 30, Reclaim);
  Add("TenThousandSegments", 1, TenThousandSegments);
}

void PrintDaemon() {
  const Samples& reclaim = AllSamples()["reclaim"];
  std::cout << "\n";
  if (!reclaim.empty()) {
    std::cout << absl::StreamFormat(
        "reaped until granted to a waiter: median %.1f us, worst of %d %.1f us (to reach: <= 30 "
        "ms)\n",
        reclaim.Median(), reclaim.size(), reclaim.Quantile(1));
  }
  std::cout << absl::StreamFormat("daemon, idle: %.1f MiB resident (to reach: <= 40 MiB)\n",
                                  static_cast<double>(bed->idle_resident) / kMiB);
  if (bed->idle_gpu_bytes >= 0) {
    std::cout << absl::StreamFormat("daemon, idle: %.1f MiB of GPU memory (to reach: <= 4 MiB)\n",
                                    static_cast<double>(bed->idle_gpu_bytes) / kMiB);
  }
}

}  // namespace gpumem::bench
