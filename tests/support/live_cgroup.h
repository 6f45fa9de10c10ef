// SPDX-License-Identifier: Apache-2.0
// A control group of the running kernel, for tests that move a process into one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::testing {

class LiveCgroup {
 public:
  // Makes the group `path` ("/a.slice/b.service") below the root of a mounted hierarchy: the
  // unified one if `controller` is empty, else that of version 1 which has it ("pids").
  //   FAILED_PRECONDITION  this machine does not allow it; the message is a reason to skip a test
  static absl::StatusOr<std::unique_ptr<LiveCgroup>> Make(const std::string& controller,
                                                          const std::string& path);
  // Removes the groups that Make has made. Requires that no process is in them.
  ~LiveCgroup();
  LiveCgroup(const LiveCgroup&) = delete;
  LiveCgroup& operator=(const LiveCgroup&) = delete;

  // The folder of the group; a process that writes "0" to its cgroup.procs joins it.
  const std::string& folder() const { return made_.back(); }
  std::string procs() const { return folder() + "/cgroup.procs"; }

 private:
  LiveCgroup() = default;
  std::vector<std::string> made_;  // folders, the outermost first
};

// Moves this process into the group with this cgroup.procs.
bool Join(const std::string& procs);

// True if some hierarchy has this process in a unit of systemd, which then takes precedence over
// the groups that a test makes.
bool InAUnit();

}  // namespace gpumem::testing
