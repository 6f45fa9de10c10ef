// SPDX-License-Identifier: Apache-2.0
// gpumem_handoffs: what a call costs in context switches and processor time, on both sides.
//
//   gpumem_handoffs [--backend auto|cuda|host] [--gpumemd PATH] [--rates R,R,...] [--calls N]
//                   [--segment-bytes N] [--config FILE]
//
// Starts a daemon for itself, and makes calls at fixed rates (calls a second; 0: one after the
// other). For each it prints the median and p99, the context switches of the daemon's and the
// client's threads, and their processor time, all for one call. $GPUMEM_SPIN_US is the client's;
// --config adds to the daemon's configuration. Idle is what both do while no call is made.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gpumem/client.h"
#include "tests/support/daemon_process.h"

namespace gpumem::bench {
namespace {

constexpr char kConfig[] = R"(
[host]
device_bytes = "64GiB"
[[tenant]]
name = "retained"
max_segments = 50000
[[tenant]]
name = "fresh"
max_retained = 0
max_segments = 50000
[[rule]]
tenant = "retained"
default = true
[[rule]]
tenant = "fresh"
default = true
)";

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << "gpumem_handoffs: " << value.status() << std::endl;
  std::_Exit(1);
}

// What the threads of a process have used so far; threads that end meanwhile are lost.
struct Usage {
  double voluntary = 0, involuntary = 0, cpu_us = 0;
};

Usage UsageOf(pid_t pid) {
  Usage usage;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      double value = 0;
      const std::vector<std::string> parts = absl::StrSplit(line, '\t');
      if (parts.size() < 2 || !absl::SimpleAtod(parts[1], &value)) continue;
      if (parts[0] == "voluntary_ctxt_switches:") usage.voluntary += value;
      if (parts[0] == "nonvoluntary_ctxt_switches:") usage.involuntary += value;
    }
    double ns = 0;
    std::ifstream(task.path() / "schedstat") >> ns;
    usage.cpu_us += ns / 1000;
  }
  return usage;
}

double At(std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(q * sorted.size()))];
}

class Table {
 public:
  explicit Table(pid_t daemon) : daemon_(daemon) {
    std::printf("%-22s %9s %9s %9s | %-23s | %s\n", "", "rate", "p50 us", "p99 us",
                "daemon: switches cpu us", "client: switches cpu us");
  }

  // Makes `calls` calls at this rate and prints their row.
  void Row(const std::string& name, int64_t rate, int calls, const std::function<void(int)>& call) {
    const Usage daemon = UsageOf(daemon_), client = UsageOf(getpid());
    std::vector<double> us;
    const absl::Time start = absl::Now();
    for (int i = 0; i < calls; ++i) {
      if (rate > 0) {
        const absl::Duration pause = start + absl::Seconds(1.0 * i / rate) - absl::Now();
        if (pause > absl::ZeroDuration()) absl::SleepFor(pause);
      }
      const int64_t before = absl::GetCurrentTimeNanos();
      call(i);
      us.push_back((absl::GetCurrentTimeNanos() - before) / 1e3);
    }
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    std::sort(us.begin(), us.end());
    // The client slept before each call.
    const double slept = rate > 0 ? calls : 0;
    std::printf("%-22s %9.0f %9.1f %9.1f |", name.c_str(), calls / seconds, At(us, 0.5),
                At(us, 0.99));
    Print(daemon, UsageOf(daemon_), calls, 0);
    std::printf("|");
    Print(client, UsageOf(getpid()), calls, slept);
    std::printf("\n");
  }

  void Idle(absl::Duration time) {
    const Usage before = UsageOf(daemon_);
    absl::SleepFor(time);
    const Usage after = UsageOf(daemon_);
    const double seconds = absl::ToDoubleSeconds(time);
    std::printf("%-22s the daemon wakes %.2f times a second and uses %.0f us of a processor\n",
                "idle", (after.voluntary - before.voluntary) / seconds,
                (after.cpu_us - before.cpu_us) / seconds);
  }

 private:
  static void Print(const Usage& before, const Usage& after, int calls, double slept) {
    std::printf(" %5.2f +%5.2f forced %6.1f ", (after.voluntary - before.voluntary - slept) / calls,
                (after.involuntary - before.involuntary) / calls,
                (after.cpu_us - before.cpu_us) / calls);
  }

  const pid_t daemon_;
};

int Main(int argc, char** argv) {
  testing::DaemonOptions options{.backend = "auto", .config = kConfig};
  std::vector<std::string> rates = {"0", "100", "1000", "5000"};
  int calls = 2000;
  uint64_t bytes = 2 << 20;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--backend") options.backend = value;
    if (flag == "--gpumemd") setenv("GPUMEM_GPUMEMD", value.c_str(), 1);
    if (flag == "--rates") rates = absl::StrSplit(value, ',');
    if (flag == "--calls") calls = std::atoi(value.c_str());
    if (flag == "--segment-bytes") bytes = std::strtoull(value.c_str(), nullptr, 10);
    if (flag == "--config") {
      std::stringstream text;
      text << std::ifstream(value).rdbuf();
      options.config = text.str() + kConfig;
    }
  }
  auto daemon = OrDie(testing::DaemonProcess::Start(options));
  auto retained = OrDie(daemon->Connect("retained"));
  auto fresh = OrDie(daemon->Connect("fresh"));
  Table table(daemon->pid());
  const auto acquire = [&](Client& client) {
    return OrDie(client.Acquire({.bytes = bytes, .timeout = absl::Seconds(10)}));
  };
  for (int i = 0; i < 100; ++i) (void)acquire(*retained);
  for (const std::string& text : rates) {
    const int64_t rate = std::atoll(text.c_str());
    const int n = rate == 0 ? calls : std::min<int>(calls, static_cast<int>(rate) * 4);
    table.Row("query", rate, n, [&](int) { OrDie(retained->GetUsage()); });
    table.Row("retained pair", rate, n, [&](int) { (void)acquire(*retained); });
    table.Row("fresh pair", rate, n, [&](int) { (void)acquire(*fresh); });
    std::vector<Segment> segments(static_cast<size_t>(std::min(n, 1000)));
    const int m = static_cast<int>(segments.size());
    const auto all = [&](const std::string& name, Client& client) {
      table.Row(name, rate, m, [&](int i) { segments[i] = acquire(client); });
      table.Row("  its release", rate, m, [&](int i) { segments[i] = Segment(); });
    };
    all("fresh", *fresh);
    // So many are retained then.
    for (size_t left = segments.size(); left > 0;) {
      const size_t some = std::min<size_t>(left, 200);
      for (Segment& segment : OrDie(retained->AcquireMany(
               {.bytes = bytes, .timeout = absl::Seconds(60)}, static_cast<int>(some)))) {
        segments[--left] = std::move(segment);
      }
    }
    for (Segment& segment : segments) segment = Segment();
    all("retained", *retained);
  }
  table.Idle(absl::Seconds(10));
  return 0;
}

}  // namespace
}  // namespace gpumem::bench

int main(int argc, char** argv) { return gpumem::bench::Main(argc, argv); }
