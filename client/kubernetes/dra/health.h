// SPDX-License-Identifier: Apache-2.0
// The health of the node's GPUs, for the kubelet: pods have it in their status.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/kubernetes/dra/slices.h"

namespace gpumem::kubernetes {

enum class Health { kUnknown, kHealthy, kUnhealthy };

struct DeviceHealth {
  Health health = Health::kUnknown;
  std::string message;  // empty if healthy
  bool operator==(const DeviceHealth&) const = default;
};
using HealthByDevice = std::map<std::string, DeviceHealth>;  // by name in the slice

// Returns the health of all devices that gpumemd has now or has had. Pure.
// - Healthy: gpumemd has it.
// - Unhealthy: gpumemd has had it, and has it no more.
// - Unknown: gpumemd does not answer.
HealthByDevice HealthOf(const HealthByDevice& before, const absl::StatusOr<NodeDevices>& devices);

// The latest health, for any number of watchers. Thread-safe.
class HealthFeed {
 public:
  // Takes gpumemd's answer.
  void Update(const absl::StatusOr<NodeDevices>& devices);
  // Ends all waits, now and later.
  void Close();

  struct News {
    HealthByDevice devices;
    uint64_t number = 0;
    bool closed = false;
  };
  // Waits for another update than `seen`, until a time. Returns the latest one.
  News Wait(uint64_t seen, absl::Time until) const;

 private:
  mutable absl::Mutex mutex_;
  News news_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::kubernetes
