// SPDX-License-Identifier: Apache-2.0
#include "tests/support/live_cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/unique_fd.h"

namespace gpumem::testing {
namespace {

// Returns the mount point of the hierarchy's root; empty if it is not mounted.
std::string MountOf(const std::string& controller) {
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    // "ID PARENT DEVICE ROOT MOUNT OPTIONS … - TYPE SOURCE SUPEROPTIONS" (proc_pid_mountinfo(5)).
    const std::vector<std::string> halves = absl::StrSplit(line, " - ");
    if (halves.size() != 2) continue;
    const std::vector<std::string> mount = absl::StrSplit(halves[0], ' ');
    const std::vector<std::string> type = absl::StrSplit(halves[1], ' ');
    if (mount.size() < 5 || type.size() < 3 || mount[3] != "/") continue;
    const std::vector<std::string> options = absl::StrSplit(type[2], ',');
    const bool is_it =
        controller.empty()
            ? type[0] == "cgroup2"
            : type[0] == "cgroup" && std::count(options.begin(), options.end(), controller) > 0;
    if (is_it) return mount[4];
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<LiveCgroup>> LiveCgroup::Make(const std::string& controller,
                                                             const std::string& path) {
  const std::string name =
      controller.empty() ? "cgroup v2" : absl::StrCat("cgroup v1 ", controller);
  std::string folder = MountOf(controller);
  if (folder.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(name, " is not mounted here"));
  }
  std::unique_ptr<LiveCgroup> group(new LiveCgroup);
  for (absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    absl::StrAppend(&folder, "/", part);
    if (mkdir(folder.c_str(), 0755) != 0) {
      if (errno == EEXIST) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("this user may make no group of ", name, ": ", strerror(errno)));
    }
    group->made_.push_back(folder);
  }
  return group;
}

LiveCgroup::~LiveCgroup() {
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) rmdir(folder->c_str());
}

bool Join(const std::string& procs) {
  const UniqueFd file(open(procs.c_str(), O_WRONLY | O_CLOEXEC));
  return file.valid() && write(file.get(), "0", 1) == 1;
}

bool InAUnit() {
  std::ifstream groups("/proc/self/cgroup");
  std::stringstream text;
  text << groups.rdbuf();
  return absl::StrContains(text.str(), ".service") || absl::StrContains(text.str(), ".scope");
}

}  // namespace gpumem::testing
