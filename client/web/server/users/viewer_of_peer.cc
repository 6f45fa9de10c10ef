// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/users/viewer_of_peer.h"

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/unique_fd.h"

namespace gpumem::web {
namespace {

// NGROUPS_MAX of Linux.
constexpr size_t kMostGroups = 65536;

// Returns the supplementary groups that a peer had when it connected.
std::vector<gid_t> PeerGroups(int socket) {
  std::vector<gid_t> groups(64);
  while (true) {
    socklen_t size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0) {
      groups.resize(size / sizeof(gid_t));
      return groups;
    }
    const size_t needed = size / sizeof(gid_t);
    if (errno != ERANGE || needed <= groups.size() || needed > kMostGroups) return {};
    groups.resize(needed);
  }
}

// Linux 6.5; Debian 12's headers do not name it.
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

// Returns the values after a name such as "NSpid:" in a file of /proc; none if it has no such line.
std::vector<std::string> ValuesIn(const std::string& path, absl::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    absl::string_view values = line;
    if (!absl::ConsumePrefix(&values, name)) continue;
    return absl::StrSplit(values, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  }
  return {};
}

UniqueFd PidfdOf(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return UniqueFd(fd);
  if (errno != ENOPROTOOPT) return {};  // it has ended
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

// True if the process that connected lives in this process's PID namespace, and not in one below
// it, as processes of a container do. False if that cannot be told. `pid`: as the socket has it.
bool IsOfThisPidNamespace(int socket, pid_t pid) {
  if (pid <= 0) return false;
  const UniqueFd pidfd = PidfdOf(socket, pid);
  if (!pidfd.valid()) return false;
  // The pid in each namespace, from that of /proc's mounter on (pidfd_open(2), proc(5)). The pidfd
  // has it also where /proc hides processes of other users.
  static const size_t own = ValuesIn("/proc/self/status", "NSpid:").size();
  const std::vector<std::string> pids =
      ValuesIn(absl::StrCat("/proc/self/fdinfo/", pidfd.get()), "NSpid:");
  int first = 0;  // not positive once the process has ended
  return own > 0 && pids.size() == own && absl::SimpleAtoi(pids.front(), &first) && first > 0;
}

}  // namespace

absl::StatusOr<Viewer> ViewerAt(int socket, const std::vector<gid_t>& groups) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return absl::ErrnoToStatus(errno, "cannot read the credentials of a peer");
  }
  const auto admitted = [&](gid_t group) {
    return std::find(groups.begin(), groups.end(), group) != groups.end();
  };
  Viewer viewer{.uid = credentials.uid};
  viewer.sees_all = viewer.uid == 0 || viewer.uid == geteuid() || admitted(credentials.gid);
  if (!viewer.sees_all) {
    const std::vector<gid_t> of_peer = PeerGroups(socket);
    viewer.sees_all = std::any_of(of_peer.begin(), of_peer.end(), admitted);
  }
  viewer.sees_all = viewer.sees_all && IsOfThisPidNamespace(socket, credentials.pid);
  return viewer;
}

Viewer OwnViewer() { return {.uid = geteuid(), .sees_all = true}; }

std::vector<gid_t> GroupsOf(const std::vector<std::string>& names) {
  std::vector<gid_t> groups;
  for (const std::string& name : names) {
    // At the start, before there is another thread.
    if (const group* const found = getgrnam(name.c_str())) groups.push_back(found->gr_gid);
  }
  return groups;
}

absl::StatusOr<bool> HasAccount(uid_t uid) {
  std::vector<char> buffer(16 * 1024);
  passwd entry = {};
  passwd* found = nullptr;
  const int error = getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr || error == ERANGE) return true;
  // What it returns if there is none differs (getpwnam(3)).
  if (error == 0 || error == ENOENT || error == ESRCH || error == EBADF || error == EPERM) {
    return false;
  }
  return absl::UnavailableError("the accounts of this machine cannot be read");
}

std::string NameOf(uid_t uid) {
  std::vector<char> buffer(16 * 1024);
  passwd entry = {};
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) {
    return entry.pw_name;
  }
  return absl::StrCat(uid);
}

}  // namespace gpumem::web
