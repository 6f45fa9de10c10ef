// SPDX-License-Identifier: Apache-2.0
// The variables that a service manager sets in the environment of its services.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gpumemd {

struct ManagerEnvironment {
  std::string notify_socket;          // empty: no manager
  std::vector<std::string> fd_names;  // of this process's descriptors from 3 on
  std::optional<uint64_t> capacity;   // of the FD store
  pid_t keeper_pid = 0;               // of gpumem-keeper; 0: another manager
  // Interval within which the manager expects a sign of life (sd_watchdog_enabled(3)).
  std::optional<absl::Duration> watchdog;
};

// Reads the variables and removes them (see FdStore::FromEnvironment). Omits descriptors that were
// meant for another process (LISTEN_PID).
//   INVALID_ARGUMENT  they contradict each other
absl::StatusOr<ManagerEnvironment> TakeManagerEnvironment();

}  // namespace gpumemd
