// SPDX-License-Identifier: Apache-2.0
// This process's use of the machine's resources.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace gpumemd {

struct ProcessStats {
  absl::Duration cpu;           // user and system (getrusage(2))
  uint64_t resident_bytes = 0;  // proc(5), /proc/self/statm; 0: unavailable
  uint64_t open_fds = 0;
  uint64_t max_fds = 0;  // RLIMIT_NOFILE
};

// Thread-safe.
ProcessStats ReadProcessStats();

}  // namespace gpumemd
