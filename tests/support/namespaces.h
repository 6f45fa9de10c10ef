// SPDX-License-Identifier: Apache-2.0
// Separate namespaces, with a process 1 that the test makes. Processes in them see no process, no
// network, no control group and no /run but theirs. Nothing of it is left when the object is
// destroyed; what a killed test leaves is removed by the next one.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "tests/support/child.h"
#include "tests/support/live_cgroup.h"

namespace gpumem::testing {

class Namespaces {
 public:
  struct Result {
    int code = -1;       // the exit code; 124 after a minute, when it was killed
    std::string output;  // standard output and error
  };

  // Runs /bin/sh with `script` as process 1: $1 is folder(), which is made in `folders` (/tmp or
  // /var/tmp), and `args` come after it. Mounts are
  // private and /run is empty; /sys/fs/cgroup is a cgroup2 with a separate root group. Returns at
  // once.
  //   FAILED_PRECONDITION  this user or this machine does not allow it; a reason to skip a test
  static absl::StatusOr<std::unique_ptr<Namespaces>> Make(const std::string& script,
                                                          const std::vector<std::string>& args,
                                                          const std::string& folders = "/tmp");
  // Kills all processes in them and waits for that.
  ~Namespaces();
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  // The same folder inside and outside, writable, with a name short enough for sockets in it.
  const std::string& folder() const { return folder_; }
  // Returns the pid of process 1, as the test sees it; 0 until it runs.
  pid_t pid();
  // Runs a program inside, as root.
  Result Run(const std::vector<std::string>& args) const;
  // Like Run(), without waiting. `args` begins with a path; the program's output goes to `output`,
  // a file. It is a member of no control group of the namespace but `group`, if one is named
  // ("/init").
  Child Start(const std::vector<std::string>& args, const std::string& output,
              const std::string& group = "") const;
  // Returns the output of process 1.
  std::string Log() const;

 private:
  Namespaces() = default;

  std::string folder_;
  UniqueFd lock_;  // on the folder, as long as this test lives
  std::unique_ptr<LiveCgroup> group_;
  Child unshare_;  // parent of process 1, which dies with it
  pid_t pid_ = 0;
  UniqueFd pidfd_;
  mutable std::atomic<int> runs_ = 0;  // threads may call Run()
};

}  // namespace gpumem::testing
