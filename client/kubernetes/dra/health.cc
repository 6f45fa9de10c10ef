// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/dra/health.h"

#include "absl/strings/str_cat.h"

namespace gpumem::kubernetes {

HealthByDevice HealthOf(const HealthByDevice& before, const absl::StatusOr<NodeDevices>& devices) {
  HealthByDevice health = before;
  for (auto& [name, device] : health) {
    device = devices.ok() ? DeviceHealth{Health::kUnhealthy, "gpumemd has no such GPU any more"}
                          : DeviceHealth{Health::kUnknown,
                                         absl::StrCat("gpumemd: ", devices.status().message())};
  }
  if (!devices.ok()) return health;
  for (const auto& [name, device] : *devices) health[name] = {Health::kHealthy, ""};
  return health;
}

void HealthFeed::Update(const absl::StatusOr<NodeDevices>& devices) {
  absl::MutexLock lock(&mutex_);
  news_.devices = HealthOf(news_.devices, devices);
  ++news_.number;
}

void HealthFeed::Close() {
  absl::MutexLock lock(&mutex_);
  news_.closed = true;
}

HealthFeed::News HealthFeed::Wait(uint64_t seen, absl::Time until) const {
  absl::MutexLock lock(&mutex_);
  const auto is_new = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return news_.closed || news_.number != seen;
  };
  mutex_.AwaitWithDeadline(absl::Condition(&is_new), until);
  return news_;
}

}  // namespace gpumem::kubernetes
