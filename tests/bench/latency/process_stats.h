// SPDX-License-Identifier: Apache-2.0
// Facts about processes that the kernel keeps: context switches, allowed CPUs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gpumem::bench {

// Returns the context switches so far, voluntary and not, of all threads that the process has now,
// by /proc/PID/task/*/status. 0 if there is no such process.
uint64_t ContextSwitches(pid_t pid);

// Returns the CPUs that the process's threads may run on, as the kernel writes them ("0-3,8").
// Threads that differ are joined by " and ".
std::string AllowedCpus(pid_t pid);

// Lets this thread, and the threads and processes that it starts later, run on these CPUs only.
//   INVALID_ARGUMENT     not a list such as "0-3,8"
//   FAILED_PRECONDITION  the kernel allows this process none of them
absl::Status RunOnCpus(absl::string_view list);

}  // namespace gpumem::bench
