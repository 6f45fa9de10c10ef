// Devices that fail, and stall, when a test says so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/device/device.h"

namespace gpumemd {

struct DeviceOp {
  enum class Type {
    kCreate,           // the answer is Create's, if it is an error
    kDestroy,          // of an Allocation; the answer is ignored
    kDriverFreeBytes,  // the answer is DriverFreeBytes', if it is an error
  };
  Type type = Type::kCreate;
  Kind kind = Kind::kVmm;  // of kCreate and kDestroy
  uint64_t bytes = 0;      // likewise
};

// Asked before each operation, in the thread that does it and without any lock; may
// take its time. The operation goes ahead where it answers OK.
using FaultPlan = std::function<absl::Status(const DeviceOp&)>;

// `device` under `plan`, which is called from several threads at once if the device is.
std::unique_ptr<Device> InjectFaults(std::unique_ptr<Device> device, FaultPlan plan);

// Where a plan can hold threads up, so that a test decides what happens first. Shut at
// first; thread-safe.
class Gate {
 public:
  // Returns when the gate is open.
  void Pass() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns when `threads` threads stand before the gate.
  void AwaitArrivals(int threads) ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets all through, for good.
  void Open() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpumemd
