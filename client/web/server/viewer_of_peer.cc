// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/viewer_of_peer.h"

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

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
