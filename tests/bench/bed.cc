// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/bed.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cuda/nvml.h"
#include "tests/bench/latency/process_stats.h"
#include "tests/support/child.h"

namespace gpumem::bench {

using testing::DaemonProcess;
using testing::Eventually;

Bed* bed = nullptr;

std::map<std::string, Samples>& AllSamples() {
  static auto* const all = new std::map<std::string, Samples>;
  return *all;
}

namespace {

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
[[tenant]]
name = "waiting"
max_segments = 1
[[tenant]]
name = "limited"
limit = "2000MiB"
max_segments = 50000
[[tenant]]
name = "first"
max_retained = 0
[[rule]]
tenant = "first"
default = true
[[rule]]
tenant = "retained"
default = true
[[rule]]
tenant = "fresh"
default = true
[[rule]]
tenant = "waiting"
default = true
[[rule]]
tenant = "limited"
default = true
)";

// Returns free GPU memory by the driver's count; -1 without NVML.
int64_t GpuFreeBytes(const std::string& uuid) {
  absl::StatusOr<const Nvml*> nvml = Nvml::Get();
  if (!nvml.ok()) return -1;
  absl::StatusOr<Nvml::Device*> device = (*nvml)->FindDevice(uuid);
  if (!device.ok()) return -1;
  absl::StatusOr<uint64_t> free = (*nvml)->FreeBytes(*device);
  return free.ok() ? static_cast<int64_t>(*free) : -1;
}

}  // namespace

void MakeBed(const std::string& backend) {
  bed = new Bed;
  const auto start = [&backend] {
    bed->daemon = OrDie(DaemonProcess::Start({.backend = backend, .config = kConfig}), "daemon");
    bed->fresh = OrDie(bed->daemon->Connect("fresh"), "connect");
    bed->retained = OrDie(bed->daemon->Connect("retained"), "connect");
  };
  start();
  bed->devices = OrDie(bed->fresh->Devices(), "devices");
  bed->device = bed->devices.front();
  bed->idle_resident = testing::ResidentBytes(bed->daemon->pid());
  if (OnGpu()) {
    // The GPU memory that an idle daemon takes. This process has not touched the GPU.
    const int64_t with = GpuFreeBytes(bed->device.uuid);
    bed->fresh.reset();
    bed->retained.reset();
    bed->daemon.reset();
    const int64_t without = GpuFreeBytes(bed->device.uuid);
    if (with >= 0 && without >= 0) bed->idle_gpu_bytes = without - with;
    start();
    bed->context = OrDie(DeviceCopier::ForCuda(bed->device.uuid), "context");
  }
  bed->owner = std::make_unique<BareOwner>(bed->device.backend, bed->device.uuid);
  OrDie(bed->owner->Ping(), "bare owner");
  std::cout << "CPUs: client " << AllowedCpus(getpid()) << ", daemon "
            << AllowedCpus(bed->daemon->pid()) << ", bare owner " << AllowedCpus(bed->owner->pid())
            << std::endl;
  std::cout << "device: " << bed->device.name << " (" << bed->device.uuid << "), daemon "
            << bed->fresh->daemon_version() << std::endl;
}

void Count(benchmark::State& state, const std::string& name, absl::Duration time, bool row) {
  AllSamples()[name].Add(time);
  if (row) state.SetIterationTime(absl::ToDoubleSeconds(time));
}

void Report(benchmark::State& state, const std::string& name) {
  const Samples& samples = AllSamples()[name];
  state.counters["p50_us"] = samples.Median();
  state.counters["p99_us"] = samples.Quantile(0.99);
  state.counters["max_us"] = samples.Quantile(1);
}

namespace {

bool IsSettled(Client& client) {
  for (const DeviceUsage& usage : OrDie(client.GetUsage(), "usage").devices) {
    // A pool keeps the memory that this process has had of it, as lingering.
    if (usage.charged_bytes != usage.lingering_bytes) return false;
  }
  return true;
}

const absl::Status kNeverSettled = absl::InternalError("memory does not come back");

}  // namespace

void Settle(Client& client) {
  if (!Eventually([&] { return IsSettled(client); })) OrDie(kNeverSettled, "settle");
}

void SettleBusily(Client& client) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!IsSettled(client)) {
    if (absl::Now() > deadline) OrDie(kNeverSettled, "settle");
  }
}

void WaitForDriver() {
  if (!OnGpu()) return;
  absl::SleepFor(absl::Milliseconds(1500));
  OrDie(bed->owner->Make(bed->device.kinds.front(), 2 * kMiB, 1, /*send=*/false).status(), "make");
  OrDie(bed->owner->Drop(), "drop");
}

std::string SizeName(uint64_t bytes) {
  return bytes % kGiB == 0 ? absl::StrCat(bytes / kGiB, "GiB") : absl::StrCat(bytes / kMiB, "MiB");
}

namespace {
std::string unprinted_head;
}  // namespace

void PrintTableHead(const std::string& about) {
  unprinted_head = absl::StrFormat("\n%-44s %11s %11s  %-30s %-18s %8s\n", about + ", medians",
                                   "us", "floor us", "floor", "to reach", "ratio");
}

void PrintRow(const std::string& what, double us, const std::string& floor, double floor_us,
              const std::string& reach) {
  if (us <= 0 || floor_us <= 0) return;
  std::cout << std::exchange(unprinted_head, "")
            << absl::StreamFormat("%-44s %11.1f %11.1f  %-30s %-18s %7.2fx\n", what, us, floor_us,
                                  floor, reach, us / floor_us);
}

}  // namespace gpumem::bench
