// SPDX-License-Identifier: Apache-2.0
// The driver's calls that map and unmap another process's memory, each by itself, in a process with
// a CUDA context. Registers nothing without a GPU.
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cuda/driver.h"
#include "tests/bench/bed.h"
#include "tests/bench/latency/latency.h"

namespace gpumem::bench {

#if GPUMEM_WITH_CUDA
namespace {

constexpr const char* kSteps[] = {"reserve", "import", "map",           "release handle",
                                  "access",  "unmap",  "free addresses"};

struct Result {
  std::string name;
  std::map<std::string, Samples> steps;
};
std::vector<Result>& Results() {
  static auto* const all = new std::vector<Result>;
  return *all;
}

void MapOnce(const CudaDriver& driver, CUdevice device, int fd, uint64_t bytes, Result& result) {
  const auto step = [&](const char* name, auto&& call) {
    CUresult done = CUDA_SUCCESS;
    result.steps[name].Add(Time([&] { done = call(); }));
    if (done != CUDA_SUCCESS) OrDie(driver.Error(done, name), result.name);
  };
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  step("reserve", [&] { return driver.cuMemAddressReserve(&at, bytes, 0, 0, 0); });
  step("import", [&] {
    return driver.cuMemImportFromShareableHandle(&handle,
                                                 reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  });
  step("map", [&] { return driver.cuMemMap(at, bytes, 0, handle, 0); });
  step("release handle", [&] { return driver.cuMemRelease(handle); });
  step("access", [&] { return driver.cuMemSetAccess(at, bytes, &access, 1); });
  step("unmap", [&] { return driver.cuMemUnmap(at, bytes); });
  step("free addresses", [&] { return driver.cuMemAddressFree(at, bytes); });
}

void MapSteps(benchmark::State& state, uint64_t bytes, absl::Duration pause) {
  const CudaDriver* const driver = OrDie(CudaDriver::Get(), "driver");
  const CUdevice device = OrDie(driver->FindDevice(bed->device.uuid), "device");
  const Handed memory = OrDie(bed->owner->Make(Kind::kVmm, bytes, 1, true), "memory");
  Result result = {.name = absl::StrCat(SizeName(bytes),
                                        pause == absl::ZeroDuration() ? "" : ", after 2ms asleep"),
                   .steps = {}};
  for (auto _ : state) {
    absl::SleepFor(pause);
    const absl::Duration time =
        Time([&] { MapOnce(*driver, device, memory.fds.front().get(), bytes, result); });
    state.SetIterationTime(absl::ToDoubleSeconds(time));
  }
  OrDie(bed->owner->Drop(), "drop");
  for (const auto& [name, samples] : result.steps) {
    state.counters[absl::StrCat(name, "_p50_us")] = samples.Median();
  }
  Results().push_back(std::move(result));
}

}  // namespace

void RegisterExplainSteps(const LatencyRun& run) {
  if (!OnGpu()) return;
  for (const uint64_t bytes : {2 * kMiB, 64 * kMiB, kGiB}) {
    for (const absl::Duration pause : {absl::ZeroDuration(), absl::Milliseconds(2)}) {
      Add(absl::StrCat("Explain/map/", SizeName(bytes),
                       pause == absl::ZeroDuration() ? "" : "/2ms asleep"),
          run.quick ? 3 : 100, [=](benchmark::State& state) { MapSteps(state, bytes, pause); });
    }
  }
}

void PrintExplainSteps() {
  if (Results().empty()) return;
  std::cout << "\nMedians in microseconds of the driver's calls in the importer\n\n| memory |";
  for (const char* step : kSteps) std::cout << " " << step << " |";
  std::cout << "\n|---|---:|---:|---:|---:|---:|---:|---:|\n";
  for (const Result& result : Results()) {
    std::cout << "| " << result.name << " |";
    for (const char* step : kSteps) {
      std::cout << absl::StreamFormat(" %.1f |", result.steps.at(step).Median());
    }
    std::cout << "\n";
  }
}

#else

void RegisterExplainSteps(const LatencyRun&) {}
void PrintExplainSteps() {}

#endif

}  // namespace gpumem::bench
