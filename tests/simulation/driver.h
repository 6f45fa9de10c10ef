// SPDX-License-Identifier: Apache-2.0
// The simulated driver and its devices. Memory exists as long as a process, a message or the
// service manager's store holds it, as with real descriptors.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/ids.h"
#include "daemon/device/device.h"
#include "daemon/tier/extents.h"

namespace gpumemd::simulation {

inline constexpr uint64_t kGranule = 2 << 20;

class Driver;

// One driver allocation. Held by shared pointers; the last one returns it to the driver.
struct Memory {
  Driver* driver = nullptr;
  size_t device = 0;
  uint64_t bytes = 0;
  int fd = -1;                       // stands for every descriptor of it
  uint64_t contents = 0;             // a stamp of what was written last; 0: zeros
  std::optional<SegmentId> segment;  // once the store was asked to keep it
  std::string tenant;                // whose session wrote to it
  bool shown = false;                // another tenant's process has mapped it
  ~Memory();
};
using MemoryPtr = std::shared_ptr<Memory>;

// Outlives daemons.
class Driver {
 public:
  // `capacity`: by device.
  explicit Driver(std::vector<uint64_t> capacity)
      : capacity_(std::move(capacity)), used_(capacity_.size(), 0) {}

  // Returns null if the device has no memory left.
  MemoryPtr Make(size_t device, uint64_t bytes);
  // Returns the memory behind a descriptor; null: it is gone.
  MemoryPtr Find(int fd) const;
  uint64_t capacity(size_t device) const { return capacity_[device]; }
  size_t capacities() const { return capacity_.size(); }
  uint64_t used(size_t device) const { return used_[device]; }
  // All memory that exists, by descriptor.
  const std::map<int, std::weak_ptr<Memory>>& all() const { return all_; }

  // Processes past the broker take this much of the first device.
  uint64_t foreign = 0;
  // The contents of the host tier's file, by granule.
  std::map<uint64_t, uint64_t> tier_file;

 private:
  friend struct Memory;
  const std::vector<uint64_t> capacity_;
  std::vector<uint64_t> used_;
  std::map<int, std::weak_ptr<Memory>> all_;
  int next_fd_ = 1 << 24;  // above all real ones: closing it does nothing
};

// What a daemon's devices need of it.
class DeviceHost {
 public:
  virtual ~DeviceHost() = default;
  // A moment at which the daemon may be killed, and other threads run. False if it is dead: nothing
  // that it does has an effect any more.
  virtual bool Pause(const char* where) = 0;
  // True if this driver call is to fail.
  virtual bool Fails() = 0;
};

// The devices of one daemon: number `index` of the driver, and the host tier.
class Devices {
 public:
  Devices(Driver* driver, DeviceHost* host) : driver_(*driver), host_(*host) {}
  std::unique_ptr<Device> MakeGpu(size_t index);
  std::unique_ptr<Device> MakeTier(uint64_t bytes);
  // The daemon is dead: the kernel takes back what it held.
  void Abandon();

 private:
  class Gpu;
  class Tier;
  class GpuMemory;
  class TierMemory;

  Driver& driver_;
  DeviceHost& host_;
  std::set<GpuMemory*> held_;
};

}  // namespace gpumemd::simulation
