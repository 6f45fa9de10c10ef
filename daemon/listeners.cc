#include "daemon/listeners.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <memory>
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

// Makes the folder and those above it; true where it was not there.
absl::StatusOr<bool> MakeRuntimeDir(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) {
    const size_t slash = path.rfind('/');
    if (slash != std::string::npos && slash > 0) {
      absl::StatusOr<bool> parent = MakeRuntimeDir(path.substr(0, slash));
      if (!parent.ok()) return parent.status();
    }
    if (mkdir(path.c_str(), 0755) == 0) return true;
    if (errno != EEXIST) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot make the runtime folder ", path));
    }
    if (stat(path.c_str(), &found) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at ", path));
    }
  }
  if (!S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a folder"));
  }
  return false;
}

// Checks one of the folders on the way to the runtime folder. The owner of a parent folder, and
// users who may write to it, can rename what is in it, unless it is sticky: then only owners can.
absl::Status CheckParent(const std::string& parent, const std::string& runtime_dir) {
  struct stat found;
  if (lstat(parent.c_str(), &found) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at ", parent));
  }
  const auto refuse = [&](const std::string& who) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, " ", parent, ", on the way to the runtime folder ", runtime_dir,
                     ", and so replace the folder with the daemon's sockets; use a folder whose "
                     "parents only root and the daemon's user can change"));
  };
  if (found.st_uid != geteuid() && found.st_uid != 0) {
    return refuse(absl::StrCat("uid ", found.st_uid, " owns and may change"));
  }
  // A link's own mode says nothing; what it points to is checked as well.
  if (S_ISLNK(found.st_mode) || (found.st_mode & S_ISVTX) != 0) return absl::OkStatus();
  if ((found.st_mode & S_IWOTH) != 0) return refuse("any user may write to");
  if ((found.st_mode & S_IWGRP) != 0 && found.st_gid != 0 && found.st_gid != getegid()) {
    return refuse(absl::StrCat("group ", found.st_gid, " may write to"));
  }
  return absl::OkStatus();
}

// Checks all of a path but its last part.
absl::Status CheckParentsOf(const std::string& path, const std::string& runtime_dir) {
  for (size_t slash = path.find('/'); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    if (slash + 1 == path.size()) break;  // the path ends with it
    absl::Status safe = CheckParent(path.substr(0, std::max<size_t>(slash, 1)), runtime_dir);
    if (!safe.ok()) return safe;
  }
  return absl::OkStatus();
}

absl::Status CheckParents(const std::string& runtime_dir) {
  if (absl::Status named = CheckParentsOf(runtime_dir, runtime_dir); !named.ok()) return named;
  // Where links lead.
  const std::unique_ptr<char, decltype(&free)> real(realpath(runtime_dir.c_str(), nullptr), free);
  if (real == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at ", runtime_dir));
  }
  return CheckParentsOf(real.get(), runtime_dir);
}

// Whoever may write to the folder could put a socket of his own in the daemon's place.
absl::Status CheckRuntimeDir(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at ", path));
  }
  if (found.st_uid != geteuid() && found.st_uid != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the runtime folder ", path, " belongs to uid ", found.st_uid,
                     ", who could replace the daemon's sockets; use a folder of your own"));
  }
  const bool group_writes =
      (found.st_mode & S_IWGRP) != 0 && found.st_gid != 0 && found.st_gid != getegid();
  if (group_writes) {
    return absl::FailedPreconditionError(
        absl::StrCat("group ", found.st_gid, " may write to the runtime folder ", path,
                     " and so replace the daemon's sockets; use a folder that only its owner may "
                     "write to (chmod g-w)"));
  }
  if ((found.st_mode & S_IWOTH) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("anybody may write to the runtime folder ", path,
                     " and so replace the daemon's sockets; use a folder that only its owner may "
                     "write to (chmod o-w)"));
  }
  return CheckParents(path);
}

struct Role {
  const char* name;  // in FileDescriptorName=
  const char* file;
  int type;
  const char* directive;  // that makes such a socket
  mode_t mode;
  UniqueFd Listeners::*socket;
};

std::array<Role, 2> RolesOf(const Config& config) {
  return {{{"session", gpumem::kSessionSocket, SOCK_SEQPACKET,
            "ListenSequentialPacket=", config.session_socket_mode, &Listeners::session},
           {"admin", gpumem::kAdminSocket, SOCK_STREAM, "ListenStream=", config.admin_socket_mode,
            &Listeners::admin}}};
}

absl::StatusOr<int> SocketOption(int fd, int option) {
  int value = 0;
  socklen_t size = sizeof(value);
  if (getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0) return value;
  return absl::ErrnoToStatus(errno, "cannot ask a socket what it is");
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
                     "; one of their units has to go, or to have another FileDescriptorName="));
  }
  const absl::StatusOr<int> domain = SocketOption(handed.fd.get(), SO_DOMAIN);
  const absl::StatusOr<int> type = SocketOption(handed.fd.get(), SO_TYPE);
  if (!domain.ok() || !type.ok() || *domain != AF_UNIX || *type != role.type) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the socket that the service manager hands over as ", role.name,
        " is of another type; its unit has to make it with ", role.directive, "/a/path"));
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
absl::Status SetAccess(const Role& role, const Config& config, const std::string& path) {
  if (chmod(path.c_str(), role.mode) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot set the mode of ", path));
  }
  if (role.socket != &Listeners::admin || !config.admin_gid) return absl::OkStatus();
  if (chown(path.c_str(), static_cast<uid_t>(-1), *config.admin_gid) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno,
                             absl::StrCat("cannot give ", path, " to group ", *config.admin_gid));
}

// Which process made a listening socket, by the socket itself or by one that is connected to it.
absl::StatusOr<ucred> MakerOf(int socket) {
  ucred maker = {};
  socklen_t size = sizeof(maker);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &maker, &size) == 0) return maker;
  return absl::ErrnoToStatus(errno, "cannot ask a socket who made it");
}

// True if who connects to `path` comes to this socket.
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

// Where the unit and the configuration say different things of a socket, the unit has its way.
void CompareWithConfig(const Role& role, const Config& config, Listeners& listeners) {
  const std::string path = PathOf((listeners.*role.socket).get());
  struct stat found;
  if (path.empty() || stat(path.c_str(), &found) != 0) return;
  if (path != gpumem::SocketPath(config.runtime_dir, role.file)) {
    listeners.notices.push_back(absl::StrCat("The socket unit of ", role.name, " listens on ", path,
                                             ", where clients of ", config.runtime_dir,
                                             " do not look."));
  }
  if ((found.st_mode & 0777) != role.mode) {
    listeners.notices.push_back(absl::StrFormat(
        "%s has mode %04o, which its unit says (SocketMode=), and not %04o, which the "
        "configuration says.",
        path, found.st_mode & 0777, role.mode));
  }
  if (role.socket == &Listeners::admin && config.admin_gid && found.st_gid != *config.admin_gid) {
    listeners.notices.push_back(
        absl::StrCat(path, " belongs to group ", found.st_gid,
                     ", so that the members of admin_group cannot connect; its unit says which "
                     "(SocketGroup=)."));
  }
}

}  // namespace

absl::StatusOr<Listeners> Listeners::Open(const Config& config, std::vector<NamedFd> handed_over,
                                          bool kept) {
  const std::string& dir = config.runtime_dir;
  Listeners listeners;
  absl::StatusOr<bool> made = MakeRuntimeDir(dir);
  if (!made.ok()) return made.status();
  if (*made) listeners.folder_ = dir;
  if (absl::Status safe = CheckRuntimeDir(dir); !safe.ok()) return safe;

  const std::array<Role, 2> roles = RolesOf(config);
  for (NamedFd& each : handed_over) {
    const auto role = std::find_if(roles.begin(), roles.end(),
                                   [&](const Role& one) { return each.name == one.name; });
    if (role == roles.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the service manager hands over a socket named \"", each.name,
                       "\"; its unit has to say which it is: FileDescriptorName=session or admin"));
    }
    const std::string path = gpumem::SocketPath(dir, role->file);
    if (kept && !IsReachedBy(each.fd.get(), path, role->type)) continue;  // closed, and made anew
    if (absl::Status adopted = Adopt(*role, std::move(each), listeners); !adopted.ok()) {
      return adopted;
    }
    if (!kept) continue;
    if (absl::Status set = SetAccess(*role, config, path); !set.ok()) return set;
    listeners.files_.push_back(path);
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
    if (absl::Status set = SetAccess(role, config, path); !set.ok()) return set;
  }
  return listeners;
}

absl::Status Listeners::KeepIn(FdStore& store) {
  kept_ = true;
  for (const auto& [name, socket] : std::exchange(made_, {})) {
    // What was there by this name leads nowhere any more.
    absl::Status stored = store.Remove(name);
    if (stored.ok()) stored = store.Store(name, socket);
    if (stored.ok()) continue;
    kept_ = false;
    return stored;
  }
  return absl::OkStatus();
}

void Listeners::LeaveForNext() {
  folder_.clear();
  if (kept_) files_.clear();
}

Listeners& Listeners::operator=(Listeners&& other) noexcept {
  std::swap(session, other.session);
  std::swap(admin, other.admin);
  std::swap(notices, other.notices);
  std::swap(handed_over, other.handed_over);
  std::swap(files_, other.files_);
  std::swap(made_, other.made_);
  std::swap(kept_, other.kept_);
  std::swap(folder_, other.folder_);
  return *this;
}

Listeners::~Listeners() {
  RemoveFiles();
  if (!folder_.empty()) rmdir(folder_.c_str());
}

void Listeners::RemoveFiles() {
  for (const std::string& path : std::exchange(files_, {})) unlink(path.c_str());
}

}  // namespace gpumemd
