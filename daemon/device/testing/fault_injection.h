// SPDX-License-Identifier: Apache-2.0
// Devices that fail, and stall, on a test's command.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "daemon/device/device.h"

namespace gpumemd {

struct DeviceOp {
  enum class Type {
    kCreate,           // the answer is Create's, if it is an error
    kDestroy,          // of an Allocation; the answer is ignored
    kDriverFreeBytes,  // the answer is DriverFreeBytes', if it is an error
    kPrepareCopies,    // the answer is ignored
    kCopy,             // the answer is Copy's, if it is an error
  };
  Type type = Type::kCreate;
  Kind kind = Kind::kVmm;  // of kCreate and kDestroy
  uint64_t bytes = 0;      // likewise
};

// Called before each operation, in the thread that does it and without any lock; may block. The
// operation proceeds if it returns OK.
using FaultPlan = std::function<absl::Status(const DeviceOp&)>;

// Returns `device` under `plan`, which is called from several threads at once if the device is.
std::unique_ptr<Device> InjectFaults(std::unique_ptr<Device> device, FaultPlan plan);

// Lets a plan hold threads up, so that a test decides their order. Shut at first; thread-safe.
class Gate {
 public:
  // Blocks until the gate is open.
  void Pass();
  // Blocks until Pass() has been called `arrivals` times in all.
  void AwaitArrivals(int arrivals);
  // Lets all through, for good.
  void Open();

 private:
  std::atomic<int> arrivals_{0};
  std::atomic<bool> open_{false};
};

}  // namespace gpumemd
