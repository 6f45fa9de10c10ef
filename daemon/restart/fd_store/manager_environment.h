// What a service manager writes into the environment of what it starts.
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
  std::vector<std::string> fd_names;  // of the descriptors from 3 on that are this process's
  std::optional<uint64_t> capacity;   // of the FD store
  pid_t keeper_pid = 0;               // of gpumem-keeper; 0: it is another manager
  // Within which it wants to hear that this process lives (sd_watchdog_enabled(3)).
  std::optional<absl::Duration> watchdog;
};

// Reads the variables and removes them (see FdStore::FromEnvironment). Descriptors that were
// meant for another process (LISTEN_PID) are not named.
//   INVALID_ARGUMENT  they contradict each other
absl::StatusOr<ManagerEnvironment> TakeManagerEnvironment();

}  // namespace gpumemd
