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
  // unified one where `controller` is empty, else that of version 1 which has it ("pids").
  //   FAILED_PRECONDITION  this machine does not let it; the message is a reason to skip a test
  static absl::StatusOr<std::unique_ptr<LiveCgroup>> Make(const std::string& controller,
                                                          const std::string& path);
  // Removes what Make has made. No process may be left in it.
  ~LiveCgroup();
  LiveCgroup(const LiveCgroup&) = delete;
  LiveCgroup& operator=(const LiveCgroup&) = delete;

  // The folder of the group; whoever writes "0" to its cgroup.procs is in it.
  const std::string& folder() const { return made_.back(); }
  std::string procs() const { return folder() + "/cgroup.procs"; }

 private:
  LiveCgroup() = default;
  std::vector<std::string> made_;  // folders, the outermost first
};

// Moves this process into the group with this cgroup.procs.
bool Join(const std::string& procs);

// Whether some hierarchy says of this process that it is in a unit of systemd, which then goes
// before the ones that a test makes.
bool InAUnit();

}  // namespace gpumem::testing
