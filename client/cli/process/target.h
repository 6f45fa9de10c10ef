// SPDX-License-Identifier: Apache-2.0
// The process that a command suspends as a whole, as the kernel sees it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumem::cli {

struct TargetFacts {
  pid_t pid = 0;
  pid_t parent = 0;
  char state = 'S';             // as /proc/PID/stat: 'T' and 't' are stopped
  uint64_t start_ticks = 0;     // when it started; unique for the pid until the next boot
  absl::Duration age;           // since then
  std::vector<uid_t> uids;      // real, effective, saved, of the file system
  bool same_namespace = false;  // in the PID namespace of this program
};

// Holds the process by a pidfd. While that has not ended, the pid means this process.
class Target {
 public:
  //   NOT_FOUND  there is no process of that number
  static absl::StatusOr<Target> Open(pid_t pid);

  // Reads what may change. Thread-safe.
  //   NOT_FOUND  the process has ended
  absl::StatusOr<TargetFacts> Look() const;

 private:
  Target(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  pid_t pid_;
  UniqueFd pidfd_;
};

// Reads /proc/PID/stat and /proc/PID/status of a process. `own_status` is the latter of this
// program, whose pid is `own_pid`; `since_boot` is the time of the machine. Pure.
//   INTERNAL  a text is not as in proc(5)
absl::StatusOr<TargetFacts> ParseTarget(absl::string_view stat, absl::string_view status,
                                        absl::string_view own_status, pid_t own_pid,
                                        absl::Duration since_boot, int64_t ticks_per_second);

// Returns the name of a process (/proc/PID/comm); empty if it cannot be read.
std::string CommandOf(pid_t pid);

// Returns the host memory that can be taken without swapping (MemAvailable of /proc/meminfo); 0 if
// it is unknown.
uint64_t AvailableHostBytes();

}  // namespace gpumem::cli
