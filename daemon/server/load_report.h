// SPDX-License-Identifier: Apache-2.0
// The broker's load in one line, for the log and for the service manager.
#pragma once

#include <cstddef>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/core/broker/observer.h"
#include "daemon/device/device.h"
#include "daemon/restart/continuity_store.h"
#include "daemon/restart/fd_store/fd_store.h"

namespace gpumemd {

// Thread-safe.
class LoadReport {
 public:
  // `devices`: their number, but for pinned memory. `continuity` and `manager` outlive this; null:
  // there is none. Without a manager, Heartbeat() is not called.
  LoadReport(size_t devices, Backend backend, const ContinuityStore* continuity, FdStore* manager)
      : devices_(devices), backend_(backend), continuity_(continuity), manager_(manager) {}

  // Takes the load, and reports to the service manager that the broker lives.
  void Heartbeat(const BrokerLoad& load) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the line: "2 devices, 12 sessions, 3.2 GiB charged, 1 waiting".
  std::string Line() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const size_t devices_;
  const Backend backend_;
  const ContinuityStore* const continuity_;
  FdStore* const manager_;
  mutable absl::Mutex mutex_;
  BrokerLoad load_ ABSL_GUARDED_BY(mutex_);          // as of the last heartbeat
  std::string told_status_ ABSL_GUARDED_BY(mutex_);  // last status sent to the manager
};

}  // namespace gpumemd
