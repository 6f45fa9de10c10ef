// Places at which a test kills the daemon, or a worker, to see that the others go on.
//
// In what users run nothing is ever set, and a failpoint costs the load of a pointer.
#pragma once

#include <atomic>

namespace gpumem {

// Called with the name of each failpoint that is passed; null: nobody is.
inline std::atomic<void (*)(const char* name)> failpoint_hook{nullptr};

inline void Failpoint(const char* name) {
  if (auto* hook = failpoint_hook.load(std::memory_order_relaxed); hook != nullptr) hook(name);
}

}  // namespace gpumem
