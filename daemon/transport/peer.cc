#include "daemon/transport/peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/transport/peer_socket.h"

namespace gpumemd {
namespace {

// Linux 6.5; Debian 12's headers do not name it.
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

std::string ReadProc(pid_t pid, const char* name) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/", name));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::StatusOr<gpumem::UniqueFd> PidfdOf(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  // The socket itself knows its peer's process: no pid that could have been reused.
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) {
    return gpumem::UniqueFd(fd);
  }
  if (errno != ENOPROTOOPT) return absl::ErrnoToStatus(errno, "cannot watch the client's process");
  // An older kernel: by number, which may name another process by now if the one that
  // connected has ended since.
  fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot watch process ", pid));
  }
  return gpumem::UniqueFd(fd);
}

}  // namespace

uint64_t ParseStartTime(absl::string_view text) {
  // "PID (COMMAND) STATE PPID ...", and the command may hold blanks and parentheses. Of what
  // comes after it the start time is the 20th (proc_pid_stat(5)).
  const size_t command_end = text.rfind(')');
  if (command_end == absl::string_view::npos) return 0;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(text.substr(command_end + 1), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  uint64_t start_time = 0;
  if (fields.size() < 20 || !absl::SimpleAtoi(fields[19], &start_time)) return 0;
  return start_time;
}

uint64_t StartTimeOf(pid_t pid) { return ParseStartTime(ReadProc(pid, "stat")); }

std::string CommandOf(pid_t pid) {
  return Printable(absl::StripSuffix(ReadProc(pid, "comm"), "\n"));
}

std::string ParseCgroup(absl::string_view text) {
  std::string unified, systemd, other;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    // "hierarchy-ID:controllers:path"; the path may hold colons.
    std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[0] == "0" && parts[1].empty()) {
      unified = parts[2];
    } else if (parts[1] == "name=systemd") {
      systemd = parts[2];
    } else if (other.empty()) {
      other = parts[2];
    }
  }
  // In the hybrid layout the unified hierarchy may be mounted and hold nobody but "/".
  if (!unified.empty() && (unified != "/" || (systemd.empty() && other.empty()))) return unified;
  if (!systemd.empty()) return systemd;
  return unified.empty() ? other : unified;
}

absl::StatusOr<PeerIdentity> CredentialsOf(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return absl::ErrnoToStatus(errno, "cannot read the peer's credentials");
  }
  PeerIdentity identity{.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid};

  std::vector<gid_t> groups(64);
  size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  while (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) != 0) {
    if (errno != ERANGE) {
      size = 0;
      break;
    }
    groups.resize(size / sizeof(gid_t));  // the kernel says how many there are
  }
  groups.resize(size / sizeof(gid_t));
  identity.groups = std::move(groups);
  return identity;
}

absl::StatusOr<Peer> IdentifyPeer(int socket) {
  absl::StatusOr<PeerIdentity> identity = CredentialsOf(socket);
  if (!identity.ok()) return identity.status();
  const pid_t pid = identity->pid;
  if (pid <= 0) {
    return absl::FailedPreconditionError(
        "this process's PID namespace is hidden from the daemon, which must be able to watch it; "
        "run the daemon in the host's PID namespace (hostPID)");
  }
  absl::StatusOr<gpumem::UniqueFd> pidfd = PidfdOf(socket, pid);
  if (!pidfd.ok()) return pidfd.status();
  Peer peer;
  peer.pidfd = *std::move(pidfd);
  peer.identity = *std::move(identity);
  peer.identity.start_time = StartTimeOf(pid);
  peer.identity.cgroup = ParseCgroup(ReadProc(pid, "cgroup"));
  peer.command = CommandOf(pid);
  // What /proc said was said of the process behind the pidfd only if that still lives.
  pollfd gone{peer.pidfd.get(), POLLIN, 0};
  if (poll(&gone, 1, 0) != 0) {
    return absl::UnavailableError("the process that connected has exited");
  }
  return peer;
}

}  // namespace gpumemd
