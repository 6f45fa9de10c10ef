// SPDX-License-Identifier: Apache-2.0
// Reports the broker's load as one line: to the log, and as status to the service manager. The
// report is also the sign of life for the manager's watchdog.
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
  // `devices`: the number of devices, without pinned memory. `backend`: how the line calls them.
  // `continuity`: if a crash would lose memory, the line says so; null: it never does. `manager`:
  // the connection to the service manager; Heartbeat() requires one, Line() does not. Both outlive
  // this.
  LoadReport(size_t devices, Backend backend, const ContinuityStore* continuity, FdStore* manager)
      : devices_(devices), backend_(backend), continuity_(continuity), manager_(manager) {}

  // Stores the load, and tells the service manager that the broker lives. Sends the line as well if
  // the manager does not have it yet.
  void Heartbeat(const BrokerLoad& load) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the line, with the load of the last heartbeat: "2 devices, 12 sessions, 3.2 GiB
  // charged, 1 waiting". Before the first heartbeat the load is zero.
  std::string Line() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const size_t devices_;
  const Backend backend_;
  const ContinuityStore* const continuity_;
  FdStore* const manager_;  // null: none
  mutable absl::Mutex mutex_;
  BrokerLoad load_ ABSL_GUARDED_BY(mutex_);          // as of the last heartbeat
  std::string told_status_ ABSL_GUARDED_BY(mutex_);  // last line that the manager has got
};

}  // namespace gpumemd
