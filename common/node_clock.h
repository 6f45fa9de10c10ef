// A clock that all processes of a node read the same: between its readings in two of them lies what
// passed meanwhile, also where one of them was stopped.
#pragma once

#include <time.h>

#include <cstdint>

namespace gpumem {

// Nanoseconds since the node started. A container with a time namespace of its own may differ.
inline uint64_t NodeClockNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace gpumem
