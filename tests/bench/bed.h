// SPDX-License-Identifier: Apache-2.0
// Everything that the benchmarks share: a daemon, clients, a bare owner, and how to count.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "common/bytes.h"
#include "common/cuda/device_copy.h"
#include "gpumem/client.h"
#include "tests/bench/floors.h"
#include "tests/bench/samples.h"
#include "tests/support/daemon_process.h"

namespace gpumem::bench {

// Made before the benchmarks run, gone after.
struct Bed {
  std::unique_ptr<testing::DaemonProcess> daemon;
  // Tenant "fresh" keeps nothing for reuse, so that each of its segments comes from the
  // driver; "retained" keeps all.
  std::unique_ptr<Client> fresh, retained;
  std::unique_ptr<BareOwner> owner;
  // Keeps a CUDA context, as every process has that uses the memory it maps. Without one
  // the driver sets the device up for the first mapping and down with the last: 0.9 ms.
  std::unique_ptr<DeviceCopier> context;
  std::vector<DeviceInfo> devices;
  DeviceInfo device;  // the first
  uint64_t idle_resident = 0;
  int64_t idle_gpu_bytes = -1;  // of the daemon; -1: not known
};
extern Bed* bed;

// True if the first device is a GPU.
inline bool OnGpu() { return bed->device.backend == Backend::kCuda; }

// `backend` as gpumemd's --backend.
void MakeBed(const std::string& backend);

template <typename T>
T OrDie(absl::StatusOr<T> value, const std::string& what) {
  if (!value.ok()) {
    std::cerr << "gpumem_bench: " << what << ": " << value.status() << std::endl;
    std::_Exit(1);
  }
  return *std::move(value);
}
inline void OrDie(const absl::Status& status, const std::string& what) {
  if (!status.ok()) OrDie(absl::StatusOr<int>(status), what);
}

// One call, into the row's time and into the samples of that name.
void Count(benchmark::State& state, const std::string& name, absl::Duration time, bool row = true);
// The row's median, p99 and worst, of the samples of that name.
void Report(benchmark::State& state, const std::string& name);
// Adds a benchmark that measures its time itself, with `iterations` calls.
template <typename Function>
void Add(const std::string& name, int iterations, Function function) {
  benchmark::RegisterBenchmark(name.c_str(), function)
      ->UseManualTime()
      ->Iterations(iterations)
      ->Unit(benchmark::kMicrosecond);
}

// Waits until the client's tenant is charged with nothing, so that no call is timed while the
// driver is still busy with the one before.
void Settle(Client& client);
// The same without a sleep, which would let CPUs fall asleep before the next call.
void SettleBusily(Client& client);
// The driver clears large memory after it is free, and a create that comes meanwhile waits
// for it. Nothing tells when it is done; on an H200 70 GiB take less than a second. The next
// create then takes the cleared memory into the driver's books, for as long as 24 ms. So the
// bare owner, which must hold nothing, makes one here: no measured call has to.
void WaitForDriver();

std::string SizeName(uint64_t bytes);

// One line of the table at the end; nothing where a figure is missing. `reach` says which
// ratio or time is to be reached.
void PrintRow(const std::string& what, double us, const std::string& floor, double floor_us,
              const std::string& reach = "");
// Sets the title of the rows after it; printed with the first of them.
void PrintTableHead(const std::string& about);

}  // namespace gpumem::bench
