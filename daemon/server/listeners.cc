// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/listeners.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

struct Role {
  const char* name;  // in FileDescriptorName=
  const char* file;
  int type;
  const char* directive;  // that makes such a socket
  mode_t mode;
  const char* group_key;       // of the configuration
  std::optional<gid_t> group;  // of its file
  UniqueFd Listeners::*socket;
};

std::array<Role, 3> RolesOf(const Config& config) {
  return {{{"session", gpumem::kSessionSocket, SOCK_SEQPACKET, "ListenSequentialPacket=",
            config.session_socket_mode, "", std::nullopt, &Listeners::session},
           {"admin", gpumem::kAdminSocket, SOCK_STREAM, "ListenStream=", config.admin_socket_mode,
            "admin_group", config.admin_gid, &Listeners::admin},
           {"view", gpumem::kViewSocket, SOCK_STREAM, "ListenStream=", config.view_socket_mode,
            "view_group", config.view_gid, &Listeners::view}}};
}

absl::StatusOr<int> SocketOption(int fd, int option) {
  int value = 0;
  socklen_t size = sizeof(value);
  if (getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0) return value;
  return absl::ErrnoToStatus(errno, "cannot read the type of a socket");
}

// Its path in the file system; empty: it has none.
std::string PathOf(int socket) {
  sockaddr_un address = {};
  socklen_t size = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  constexpr size_t kBefore = offsetof(sockaddr_un, sun_path);
  if (size <= kBefore || address.sun_path[0] != '/') return "";
  const std::string path(address.sun_path, size - kBefore);
  return path.substr(0, path.find('\0'));
}

absl::Status Adopt(const Role& role, NamedFd handed, Listeners& listeners) {
  if ((listeners.*role.socket).valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the service manager hands over two sockets named ", role.name,
                     "; remove one of their units, or give it another FileDescriptorName="));
  }
  const absl::StatusOr<int> domain = SocketOption(handed.fd.get(), SO_DOMAIN);
  const absl::StatusOr<int> type = SocketOption(handed.fd.get(), SO_TYPE);
  if (!domain.ok() || !type.ok() || *domain != AF_UNIX || *type != role.type) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket that the service manager hands over as ", role.name,
                     " is of another type; set in its unit ", role.directive, "/a/path"));
  }
  const int flags = fcntl(handed.fd.get(), F_GETFL);
  if (flags < 0 || fcntl(handed.fd.get(), F_SETFL, flags | O_NONBLOCK) < 0) {
    return absl::ErrnoToStatus(errno, "cannot make a socket non-blocking");
  }
  listeners.*role.socket = std::move(handed.fd);
  ++listeners.handed_over;
  return absl::OkStatus();
}

// Gives the socket's file the mode and group of the configuration.
absl::Status SetAccess(const Role& role, const std::string& path) {
  if (chmod(path.c_str(), role.mode) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot set the mode of ", path));
  }
  if (!role.group) return absl::OkStatus();
  if (chown(path.c_str(), static_cast<uid_t>(-1), *role.group) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot give ", path, " to group ", *role.group));
}

// Which process made a listening socket, by the socket itself or by one that is connected to it.
absl::StatusOr<ucred> MakerOf(int socket) {
  ucred maker = {};
  socklen_t size = sizeof(maker);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &maker, &size) == 0) return maker;
  return absl::ErrnoToStatus(errno, "cannot read the owner of a socket");
}

// True if a connection to `path` reaches this socket.
bool IsReachedBy(int socket, const std::string& path, int type) {
  if (PathOf(socket) != path) return false;
  const absl::StatusOr<UniqueFd> connected =
      gpumem::ConnectUnix(path, type, absl::Now() + absl::Milliseconds(1));
  // Its queue is full.
  if (absl::IsDeadlineExceeded(connected.status())) return true;
  if (!connected.ok()) return false;
  const absl::StatusOr<ucred> ours = MakerOf(socket), theirs = MakerOf(connected->get());
  return ours.ok() && theirs.ok() && ours->pid == theirs->pid && ours->uid == theirs->uid;
}

// If the unit and the configuration differ about a socket, the unit's settings apply.
void CompareWithConfig(const Role& role, const Config& config, Listeners& listeners) {
  const std::string path = PathOf((listeners.*role.socket).get());
  struct stat found;
  if (path.empty() || stat(path.c_str(), &found) != 0) return;
  if (path != gpumem::SocketPath(config.runtime_dir, role.file)) {
    listeners.notices.push_back(absl::StrCat("The socket unit of ", role.name, " listens on ", path,
                                             ", and clients of ", config.runtime_dir,
                                             " do not connect to it."));
  }
  if ((found.st_mode & 0777) != role.mode) {
    listeners.notices.push_back(absl::StrFormat(
        "%s has mode %04o from its unit (SocketMode=), not %04o from the configuration.", path,
        found.st_mode & 0777, role.mode));
  }
  if (role.group && found.st_gid != *role.group) {
    listeners.notices.push_back(absl::StrCat(path, " belongs to group ", found.st_gid,
                                             ", so that the members of ", role.group_key,
                                             " cannot connect; set SocketGroup= in its unit."));
  }
}

}  // namespace

absl::StatusOr<Listeners> Listeners::Open(const Config& config, std::vector<NamedFd> handed_over,
                                          bool kept) {
  const std::string& dir = config.runtime_dir;
  Listeners listeners;
  absl::StatusOr<RuntimeDir> opened = RuntimeDir::Open(dir);
  if (!opened.ok()) return opened.status();
  listeners.dir_ = *std::move(opened);

  const std::array<Role, 3> roles = RolesOf(config);
  for (NamedFd& each : handed_over) {
    const auto role = std::find_if(roles.begin(), roles.end(),
                                   [&](const Role& one) { return each.name == one.name; });
    if (role == roles.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the service manager hands over a socket named \"", each.name,
                       "\"; set FileDescriptorName= in its unit to session, admin or view"));
    }
    const std::string path = gpumem::SocketPath(dir, role->file);
    if (kept && !IsReachedBy(each.fd.get(), path, role->type)) continue;  // closed, and made anew
    if (absl::Status adopted = Adopt(*role, std::move(each), listeners); !adopted.ok()) {
      return adopted;
    }
    if (!kept) continue;
    if (absl::Status set = SetAccess(*role, path); !set.ok()) return set;
    listeners.kept_files_.push_back(path);
    listeners.kept_ = true;
  }
  // All before any is served, so that two daemons cannot each have one of them.
  for (const Role& role : roles) {
    if ((listeners.*role.socket).valid()) {
      if (!kept) CompareWithConfig(role, config, listeners);
      continue;
    }
    const std::string path = gpumem::SocketPath(dir, role.file);
    absl::StatusOr<UniqueFd> listener = gpumem::ListenUnix(path, role.type, role.mode);
    if (!listener.ok()) return listener.status();
    listeners.files_.push_back(path);
    listeners.made_.emplace_back(role.name, listener->get());
    listeners.*role.socket = *std::move(listener);
    if (absl::Status set = SetAccess(role, path); !set.ok()) return set;
  }
  return listeners;
}

absl::Status Listeners::KeepIn(FdStore& store) {
  kept_ = true;
  for (const auto& [name, socket] : std::exchange(made_, {})) {
    // The old socket of this name leads nowhere any more.
    absl::Status stored = store.Remove(name);
    if (stored.ok()) stored = store.Store(name, socket);
    if (stored.ok()) continue;
    kept_ = false;
    return stored;
  }
  return absl::OkStatus();
}

void Listeners::Serves() {
  for (std::string& path : std::exchange(kept_files_, {})) files_.push_back(std::move(path));
  dir_.Serves();
}

void Listeners::LeaveForNext() {
  dir_.LeaveForNext();
  if (kept_) files_.clear();
}

Listeners& Listeners::operator=(Listeners&& other) noexcept {
  std::swap(session, other.session);
  std::swap(admin, other.admin);
  std::swap(view, other.view);
  std::swap(notices, other.notices);
  std::swap(handed_over, other.handed_over);
  std::swap(files_, other.files_);
  std::swap(kept_files_, other.kept_files_);
  std::swap(made_, other.made_);
  std::swap(kept_, other.kept_);
  std::swap(dir_, other.dir_);
  return *this;
}

// The folder is removed after its files.
Listeners::~Listeners() { RemoveFiles(); }

void Listeners::RemoveFiles() {
  for (const std::string& path : std::exchange(files_, {})) unlink(path.c_str());
}

}  // namespace gpumemd
