// SPDX-License-Identifier: Apache-2.0
// The node's units as they are now, for the threads that serve the kubelet.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/kubernetes/device_plugin/units.h"

namespace gpumem::kubernetes {

// Thread-safe.
class UnitBoard {
 public:
  void Set(const UnitList& list) {
    absl::MutexLock lock(&mutex_);
    if (list_ == list) return;
    list_ = list;
    ++version_;
  }
  // nullopt: gpumemd has not answered yet.
  std::optional<UnitList> Get() const {
    absl::MutexLock lock(&mutex_);
    return list_;
  }
  // Waits at most `timeout` for a list that is newer than `version`, and returns the present one's
  // version.
  uint64_t Wait(uint64_t version, absl::Duration timeout) const {
    absl::MutexLock lock(&mutex_);
    const auto newer = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return version_ != version; };
    mutex_.AwaitWithTimeout(absl::Condition(&newer), timeout);
    return version_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::optional<UnitList> list_ ABSL_GUARDED_BY(mutex_);
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpumem::kubernetes
