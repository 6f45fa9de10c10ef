// SPDX-License-Identifier: Apache-2.0
// A clock with the same reading in all processes of a node. It also runs while a process is
// stopped.
#pragma once

#include <time.h>

#include <cstdint>

#include "absl/time/time.h"

namespace gpumem {

// Returns nanoseconds since the node started. A container in another time namespace may differ.
inline uint64_t NodeClockNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Returns NodeClockNs() as a time, to compare with others of this clock. Its date says nothing.
inline absl::Time NodeTime() { return absl::FromUnixNanos(static_cast<int64_t>(NodeClockNs())); }

}  // namespace gpumem
