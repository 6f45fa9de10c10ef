// SPDX-License-Identifier: Apache-2.0
// Places at which a test kills the daemon, or a worker, to check that the others continue.
//
// Production code never sets the hook, and a failpoint costs the load of a pointer.
#pragma once

#include <atomic>

namespace gpumem {

// Called with the name of each failpoint that is passed; null: not called.
inline std::atomic<void (*)(const char* name)> failpoint_hook{nullptr};

inline void Failpoint(const char* name) {
  if (auto* hook = failpoint_hook.load(std::memory_order_relaxed); hook != nullptr) hook(name);
}

}  // namespace gpumem
