// gpumem_bench: what brokered memory costs, beside what the machine takes anyway.
//
//   gpumem_bench [--backend auto|cuda|host] [--gpumemd PATH] [Google Benchmark's flags]
//
// Starts a daemon of its own. Each benchmark counts one call at a time and reports the
// median, p99 and worst; the floors are the bare calls, measured in the same run. The
// table at the end sets one against the other: ratios travel between machines, times do
// not.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "benchmark/benchmark.h"
#include "client/client.h"
#include "common/bytes.h"
#include "common/device_copy.h"
#include "common/nvml.h"
#include "common/unix_channel.h"
#include "tests/bench/floors.h"
#include "tests/bench/samples.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem::bench {

std::map<std::string, Samples>& AllSamples() {
  static auto* const all = new std::map<std::string, Samples>;
  return *all;
}

namespace {

using testing::Child;
using testing::DaemonProcess;
using testing::Eventually;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// "fresh" keeps nothing for reuse, so that each of its segments comes from the driver.
constexpr char kConfig[] = R"(
[host]
device_bytes = "256GiB"
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

// Everything that the benchmarks share. Made before they run, gone after.
struct Bed {
  std::unique_ptr<DaemonProcess> daemon;
  std::unique_ptr<Client> fresh, retained;
  std::unique_ptr<BareOwner> owner;
  // Keeps a CUDA context, as every process has that uses the memory it maps. Without one
  // the driver sets the device up for the first mapping and down with the last: 0.9 ms.
  std::unique_ptr<DeviceCopier> context;
  DeviceInfo device;
  uint64_t idle_resident = 0;
  int64_t idle_gpu_bytes = -1;  // of the daemon; -1: not known
};
Bed* bed = nullptr;

template <typename T>
T OrDie(absl::StatusOr<T> value, const char* what) {
  if (!value.ok()) {
    std::cerr << "gpumem_bench: " << what << ": " << value.status() << std::endl;
    std::_Exit(1);
  }
  return *std::move(value);
}
void OrDie(const absl::Status& status, const char* what) {
  if (!status.ok()) OrDie(absl::StatusOr<int>(status), what);
}

// One call, into the row's time and into the samples of that name.
void Count(benchmark::State& state, const std::string& name, absl::Duration time, bool row = true) {
  AllSamples()[name].Add(time);
  if (row) state.SetIterationTime(absl::ToDoubleSeconds(time));
}

void Report(benchmark::State& state, const std::string& name) {
  const Samples& samples = AllSamples()[name];
  state.counters["p50_us"] = samples.Median();
  state.counters["p99_us"] = samples.Quantile(0.99);
  state.counters["max_us"] = samples.Quantile(1);
}

// So that no call is timed while the driver is still busy with the one before.
void Settle(Client& client) {
  if (!Eventually([&] { return OrDie(client.GetUsage(), "usage").charged_bytes == 0; })) {
    OrDie(absl::InternalError("memory does not come back"), "settle");
  }
}

// Free GPU memory by the driver's count; -1 where there is no NVML.
int64_t GpuFreeBytes(const std::string& uuid) {
  absl::StatusOr<const Nvml*> nvml = Nvml::Get();
  if (!nvml.ok()) return -1;
  absl::StatusOr<Nvml::Device*> device = (*nvml)->FindDevice(uuid);
  if (!device.ok()) return -1;
  absl::StatusOr<uint64_t> free = (*nvml)->FreeBytes(*device);
  return free.ok() ? static_cast<int64_t>(*free) : -1;
}

// The driver clears large memory after it is free, and a create that comes meanwhile waits
// for it. Nothing tells when it is done; on an H200 70 GiB take less than a second.
void WaitForDriver() {
  if (bed->device.backend == Backend::kCuda) absl::SleepFor(absl::Milliseconds(1500));
}

std::string SizeName(uint64_t bytes) {
  return bytes % kGiB == 0 ? absl::StrCat(bytes / kGiB, "GiB") : absl::StrCat(bytes / kMiB, "MiB");
}

// --- Floors --------------------------------------------------------------------------

void FloorSocketRoundTrip(benchmark::State& state) {
  for (auto _ : state) {
    Count(state, "floor/socket", Time([] { OrDie(bed->owner->Ping(), "ping"); }));
  }
  Report(state, "floor/socket");
}

void FloorRpcRoundTrip(benchmark::State& state) {
  for (auto _ : state) {
    Count(state, "floor/rpc", Time([] { OrDie(bed->retained->GetUsage(), "usage"); }));
  }
  Report(state, "floor/rpc");
}

// create + export + send + import + map, with an owner that does nothing else.
void FloorFresh(benchmark::State& state, uint64_t bytes, int count) {
  const std::string name = absl::StrCat("floor/fresh/", SizeName(bytes), "x", count);
  for (auto _ : state) {
    std::vector<std::unique_ptr<Mapping>> mappings;
    Count(state, name, Time([&] {
            auto fds = OrDie(bed->owner->Make(bytes, count, true), "make");
            mappings = OrDie(Map(bed->device.backend, bed->device.uuid, fds, bytes), "map");
          }));
    mappings.clear();
    OrDie(bed->owner->Drop(), "drop");
    if (count > 1) WaitForDriver();
  }
  Report(state, name);
}

// import + map of what the owner has made before.
void FloorMap(benchmark::State& state, uint64_t bytes, int count) {
  const std::string name = absl::StrCat("floor/map/", SizeName(bytes), "x", count);
  const auto fds = OrDie(bed->owner->Make(bytes, count, true), "make");
  for (auto _ : state) {
    std::vector<std::unique_ptr<Mapping>> mappings;
    Count(state, name, Time([&] {
            mappings = OrDie(Map(bed->device.backend, bed->device.uuid, fds, bytes), "map");
          }));
    Count(state, absl::StrCat("floor/unmap/", SizeName(bytes), "x", count),
          Time([&] { mappings.clear(); }), false);
  }
  OrDie(bed->owner->Drop(), "drop");
  Report(state, name);
}

// --- The broker ----------------------------------------------------------------------

void AcquireFresh(benchmark::State& state, uint64_t bytes, int count) {
  const std::string name = absl::StrCat("acquire/fresh/", SizeName(bytes), "x", count);
  for (auto _ : state) {
    std::vector<Segment> segments;
    Count(state, name, Time([&] {
            segments = OrDie(bed->fresh->AcquireMany({.bytes = bytes}, count), "acquire");
          }));
    segments.clear();
    Settle(*bed->fresh);
    if (count > 1) WaitForDriver();
  }
  Report(state, name);
}

void AcquireRetained(benchmark::State& state, uint64_t bytes) {
  const std::string name = absl::StrCat("acquire/retained/", SizeName(bytes));
  OrDie(OrDie(bed->retained->Acquire({.bytes = bytes}), "acquire").Release(), "release");
  for (auto _ : state) {
    Segment segment;
    Count(state, name,
          Time([&] { segment = OrDie(bed->retained->Acquire({.bytes = bytes}), "acquire"); }));
    if (!segment.reused()) OrDie(absl::InternalError("not a retained segment"), name.c_str());
    Count(state, absl::StrCat("release/", SizeName(bytes)),
          Time([&] { OrDie(segment.Release(), "release"); }), false);
  }
  Report(state, name);
  state.counters["release_p50_us"] =
      AllSamples()[absl::StrCat("release/", SizeName(bytes))].Median();
}

void Open(benchmark::State& state, uint64_t bytes) {
  const std::string name = absl::StrCat("open/", SizeName(bytes));
  Segment held = OrDie(bed->retained->Acquire({.bytes = bytes}), "acquire");
  const std::string ticket = OrDie(held.Share(), "share").value;
  for (auto _ : state) {
    Segment segment;
    Count(state, name, Time([&] { segment = OrDie(bed->retained->Open(ticket), "open"); }));
    OrDie(segment.Release(), "release");
  }
  Report(state, name);
}

// What a worker that starts does: connects, and maps all that somebody holds for it.
void ConnectAndOpen(benchmark::State& state, uint64_t bytes, int count) {
  const std::string name = absl::StrCat("connect+open/", SizeName(bytes), "x", count);
  const auto held = OrDie(bed->retained->AcquireMany({.bytes = bytes}, count), "acquire");
  std::vector<std::string> tickets;
  for (const Segment& segment : held) tickets.push_back(OrDie(segment.Share(), "share").value);
  for (auto _ : state) {
    std::unique_ptr<Client> client;
    std::vector<Segment> segments;
    Count(state, name, Time([&] {
            client = OrDie(bed->daemon->Connect("retained"), "connect");
            segments = OrDie(client->OpenMany(tickets), "open");
          }));
  }
  Report(state, name);
}

// From the moment that a killed holder is reaped until another client has its bytes.
void Reclaim(benchmark::State& state) {
  const std::string name = "reclaim";
  const uint64_t all = bed->device.backend == Backend::kCuda ? 32 * kGiB : 2 * kGiB;
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

// --- The daemon's own size -----------------------------------------------------------

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

// --- The table -----------------------------------------------------------------------

void Row(const std::string& what, double us, const std::string& floor, double floor_us,
         const std::string& reach) {
  if (us <= 0 || floor_us <= 0) return;
  std::cout << absl::StreamFormat("%-44s %11.1f %11.1f %7.2fx  %-30s %s\n", what, us, floor_us,
                                  us / floor_us, floor, reach);
}

void PrintTable() {
  auto& s = AllSamples();
  const auto median = [&](const std::string& name) { return s[name].Median(); };
  std::cout << absl::StreamFormat("\n%-44s %11s %11s %8s  %-30s %s\n", "work (medians)", "us",
                                  "floor us", "ratio", "floor", "to reach");
  for (uint64_t bytes : {2 * kMiB, 64 * kMiB, kGiB}) {
    const std::string size = SizeName(bytes);
    Row("acquire fresh " + size, median("acquire/fresh/" + size + "x1"),
        "create+export+send+import+map", median("floor/fresh/" + size + "x1"),
        bytes == 64 * kMiB ? "<= 250 us" : "");
    const double map = median("floor/map/" + size + "x1");
    Row("acquire retained " + size, median("acquire/retained/" + size), "socket trip+import+map",
        map > 0 ? median("floor/socket") + map : 0, bytes == 64 * kMiB ? "<= 1.5x" : "");
    Row("  the same", median("acquire/retained/" + size), "gRPC trip+import+map",
        map > 0 ? median("floor/rpc") + map : 0, "");
    Row("open " + size, median("open/" + size), "socket trip+import+map",
        map > 0 ? median("floor/socket") + map : 0, "");
    Row("release " + size, median("release/" + size), "gRPC trip+unmap",
        median("floor/unmap/" + size + "x1") + median("floor/rpc"), "");
  }
  for (const auto& [name, samples] : std::map<std::string, Samples>(s)) {
    absl::string_view rest = name;
    if (absl::ConsumePrefix(&rest, "acquire/fresh/") && !absl::EndsWith(rest, "x1")) {
      Row(absl::StrCat("acquire ", rest), samples.Median(), "create+export+send+import+map",
          median(absl::StrCat("floor/fresh/", rest)), "<= 1.2x");
    } else if (absl::ConsumePrefix(&rest, "connect+open/")) {
      Row(absl::StrCat("connect + open ", rest), samples.Median(), "import+map",
          median(absl::StrCat("floor/map/", rest)), "<= 8 ms, <= 1.3x");
    }
  }
  if (!s["reclaim"].empty()) {
    std::cout << absl::StreamFormat(
        "reaped until granted to a waiter: median %.1f us, worst of %d %.1f us (to reach: <= 30 "
        "ms)\n",
        median("reclaim"), s["reclaim"].size(), s["reclaim"].Quantile(1));
  }
  std::cout << absl::StreamFormat("daemon, idle: %.1f MiB resident (to reach: <= 40 MiB)\n",
                                  static_cast<double>(bed->idle_resident) / kMiB);
  if (bed->idle_gpu_bytes >= 0) {
    std::cout << absl::StreamFormat("daemon, idle: %.1f MiB of GPU memory (to reach: <= 4 MiB)\n",
                                    static_cast<double>(bed->idle_gpu_bytes) / kMiB);
  }
}

// --- Setting up ----------------------------------------------------------------------

void SetUp(const std::string& backend) {
  bed = new Bed;
  bed->daemon = OrDie(DaemonProcess::Start({.backend = backend, .config = kConfig}), "daemon");
  bed->fresh = OrDie(bed->daemon->Connect("fresh"), "connect");
  bed->retained = OrDie(bed->daemon->Connect("retained"), "connect");
  bed->device = OrDie(bed->fresh->Devices(), "devices").front();
  bed->idle_resident = testing::ResidentBytes(bed->daemon->pid());
  if (bed->device.backend == Backend::kCuda) {
    // What the GPU has less while an idle daemon runs. This process has not touched it.
    const int64_t with = GpuFreeBytes(bed->device.uuid);
    bed->fresh.reset();
    bed->retained.reset();
    bed->daemon.reset();
    const int64_t without = GpuFreeBytes(bed->device.uuid);
    if (with >= 0 && without >= 0) bed->idle_gpu_bytes = without - with;
    bed->daemon = OrDie(DaemonProcess::Start({.backend = backend, .config = kConfig}), "daemon");
    bed->fresh = OrDie(bed->daemon->Connect("fresh"), "connect");
    bed->retained = OrDie(bed->daemon->Connect("retained"), "connect");
    bed->context = OrDie(DeviceCopier::ForCuda(bed->device.uuid), "context");
  }
  bed->owner = std::make_unique<BareOwner>(bed->device.backend, bed->device.uuid);
  OrDie(bed->owner->Ping(), "bare owner");
  std::cout << "device: " << bed->device.name << " (" << bed->device.uuid << "), daemon "
            << bed->fresh->daemon_version() << std::endl;
}

void Register() {
  const auto add = [](const std::string& name, int iterations, auto function) {
    benchmark::RegisterBenchmark(name.c_str(), function)
        ->UseManualTime()
        ->Iterations(iterations)
        ->Unit(benchmark::kMicrosecond);
  };
  add("FloorSocketRoundTrip", 2000, FloorSocketRoundTrip);
  add("FloorRpcRoundTrip", 2000, FloorRpcRoundTrip);
  for (uint64_t bytes : {2 * kMiB, 64 * kMiB, kGiB}) {
    const int iterations = bytes == kGiB ? 60 : 300;
    const std::string size = SizeName(bytes);
    // Each next to its floor, so that both see the same machine.
    add("FloorFresh/" + size, iterations, [=](auto& state) { FloorFresh(state, bytes, 1); });
    add("AcquireFresh/" + size, iterations, [=](auto& state) { AcquireFresh(state, bytes, 1); });
    add("FloorMap/" + size, iterations, [=](auto& state) { FloorMap(state, bytes, 1); });
    add("AcquireRetained/" + size, iterations, [=](auto& state) { AcquireRetained(state, bytes); });
    add("Open/" + size, iterations, [=](auto& state) { Open(state, bytes); });
  }
  // 60 segments, 1.18 GiB; 28 segments, 69.23 GiB (2.4725 GiB each, to the next 2 MiB).
  const uint64_t part = 20 * kMiB, model = 1266 * 2 * kMiB;
  add("FloorMap/60x20MiB", 30, [=](auto& state) { FloorMap(state, part, 60); });
  add("ConnectAndOpen/60x20MiB", 30, [=](auto& state) { ConnectAndOpen(state, part, 60); });
  add("FloorFresh/28x2532MiB", 5, [=](auto& state) { FloorFresh(state, model, 28); });
  add("AcquireFresh/28x2532MiB", 5, [=](auto& state) { AcquireFresh(state, model, 28); });
  add("Reclaim", 30, Reclaim);
  add("TenThousandSegments", 1, TenThousandSegments);
}

}  // namespace

int Main(int argc, char** argv) {
  std::string backend = "auto";
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], "--backend") == 0 && i + 1 < argc) {
      backend = argv[++i];
    } else if (std::strcmp(argv[i], "--gpumemd") == 0 && i + 1 < argc) {
      setenv("GPUMEM_GPUMEMD", argv[++i], 1);
    } else {
      rest.push_back(argv[i]);
    }
  }
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 2;
  SetUp(backend);
  Register();
  benchmark::RunSpecifiedBenchmarks();
  PrintTable();
  delete bed;
  return 0;
}

int RunRole(const std::vector<std::string>& args) {
  const std::vector<std::string> rest(args.begin() + 1, args.end());
  if (args[0] == "bare-owner") return RunBareOwner(rest);
  if (args[0] == "holder") return RunHolder(rest);
  return 2;
}

}  // namespace gpumem::bench

int main(int argc, char** argv) {
  if (argc > 2 && std::strcmp(argv[1], "--role") == 0) {
    return gpumem::bench::RunRole(std::vector<std::string>(argv + 2, argv + argc));
  }
  return gpumem::bench::Main(argc, argv);
}
