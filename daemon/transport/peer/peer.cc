// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/peer/peer.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/transport/peer/cgroup_namespace.h"
#include "daemon/transport/peer/peer_socket.h"

namespace gpumemd {
namespace {

// Linux 6.5; Debian 12's headers do not name it.
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

// Returns the file's text, or "" of a file that is not there or that this process may not read: of
// a process that has ended, or that /proc hides (hidepid). Any other failure says nothing about the
// process, and must not be taken for its end.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const auto failed = [&]() -> absl::StatusOr<std::string> {
    if (errno == ENOENT || errno == ESRCH || errno == EACCES || errno == EPERM) return "";
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  };
  const gpumem::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return failed();
  std::string text;
  char part[4096];
  while (true) {
    const ssize_t size = read(file.get(), part, sizeof(part));
    if (size == 0) return text;
    if (size > 0) {
      text.append(part, static_cast<size_t>(size));
    } else if (errno != EINTR) {
      return failed();
    }
  }
}

absl::StatusOr<std::string> ReadProc(pid_t pid, const char* name) {
  return ReadFile(absl::StrCat("/proc/", pid, "/", name));
}

// -1: the kernel cannot say.
int PeerPidfd(int socket) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return fd;
  return -1;
}

absl::StatusOr<gpumem::UniqueFd> PidfdOf(int socket, pid_t pid, bool by_number) {
  if (!by_number) {
    gpumem::UniqueFd fd(PeerPidfd(socket));
    if (fd.valid()) return fd;
    // Some kernels return no pidfd of a reaped process.
    if (errno == ESRCH || errno == EINVAL) {
      return absl::UnavailableError("the process that connected has exited");
    }
    return absl::ErrnoToStatus(errno, "cannot watch the client's process");
  }
  gpumem::UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot watch process ", pid));
  return fd;
}

// Returns the process's pid in /proc: of the PID namespace of /proc's mounter, which need not be
// the daemon's. 0 if /proc does not show it.
absl::StatusOr<pid_t> NumberInProc(int pidfd) {
  const absl::StatusOr<std::string> info = ReadFile(absl::StrCat("/proc/self/fdinfo/", pidfd));
  if (!info.ok()) return info.status();
  for (absl::string_view line : absl::StrSplit(*info, '\n')) {
    pid_t pid = 0;
    if (absl::ConsumePrefix(&line, "Pid:") && absl::SimpleAtoi(line, &pid)) {
      return std::max(pid, 0);
    }
  }
  return 0;
}

// True if a process of this start time had begun when the queue was empty. Start times are rounded
// down to clock ticks.
bool HadBegun(uint64_t start_time, int64_t queue_empty_at) {
  static const int64_t tick = 1'000'000'000 / sysconf(_SC_CLK_TCK);
  return start_time > 0 && (static_cast<int64_t>(start_time) + 1) * tick <= queue_empty_at;
}

const std::string& NamespaceRoot() {
  static const std::string& root = *new std::string(
      RootOfCgroupNamespace(ReadFile("/proc/self/mountinfo").value_or(""), getpid()));
  return root;
}

// True if this process is at the root of a cgroup namespace that is not the machine's. A
// container's first process is; a service of a whole system in a container is not.
bool IsAtRootOfOwnNamespace() {
  // The machine's has this number (PROC_CGROUP_INIT_INO of the kernel's proc_ns.h).
  constexpr ino_t kMachines = 0xEFFFFFFB;
  struct stat own;
  if (stat("/proc/self/ns/cgroup", &own) != 0 || own.st_ino == kMachines) return false;
  const std::string groups = ReadFile("/proc/self/cgroup").value_or("");
  return absl::StartsWith(groups, "0::/\n") || absl::StrContains(groups, "\n0::/\n");
}

absl::StatusOr<Cgroup> CgroupOf(pid_t proc_pid) {
  const absl::StatusOr<std::string> text = ReadProc(proc_pid, "cgroup");
  if (!text.ok()) return text.status();
  if (text->empty()) {
    return Cgroup::Unknown(absl::StrCat("/proc/", proc_pid, "/cgroup cannot be read"));
  }
  return Cgroup::Parse(FromMachineRoot(*text, NamespaceRoot()));
}

// Reads the facts that /proc has of the process: start time, command and cgroup. Those that it does
// not show are 0, empty and unknown.
absl::Status ReadFacts(pid_t proc_pid, Peer& peer) {
  if (proc_pid == 0) {
    peer.identity.cgroup = Cgroup::Unknown("/proc does not show the process");
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> stat = ReadProc(proc_pid, "stat");
  if (!stat.ok()) return stat.status();
  peer.identity.start_time = ParseStartTime(*stat);
  absl::StatusOr<Cgroup> cgroup = CgroupOf(proc_pid);
  if (!cgroup.ok()) return cgroup.status();
  peer.identity.cgroup = *std::move(cgroup);
  peer.command = CommandOf(proc_pid);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> FindGroupNames() {
  if (NamespaceRoot().empty() && IsAtRootOfOwnNamespace()) {
    return absl::FailedPreconditionError(
        "the machine's control groups are not visible from this daemon's cgroup namespace: rules "
        "that ask for pod, qos, container, unit or cgroup are skipped for clients in other "
        "containers; mount the machine's /sys/fs/cgroup into this one, read-only "
        "(docs/how-to/containers.md)");
  }
  return NamespaceRoot();
}

uint64_t ParseStartTime(absl::string_view text) {
  // "PID (COMMAND) STATE PPID ...", and the command may contain blanks and parentheses. Of the
  // fields after it the start time is the 20th (proc_pid_stat(5)).
  const size_t command_end = text.rfind(')');
  if (command_end == absl::string_view::npos) return 0;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(text.substr(command_end + 1), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  uint64_t start_time = 0;
  if (fields.size() < 20 || !absl::SimpleAtoi(fields[19], &start_time)) return 0;
  return start_time;
}

bool KernelHasPeerPidfd() {
  static const bool known = [] {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
    const gpumem::UniqueFd one(ends[0]), other(ends[1]);
    return gpumem::UniqueFd(PeerPidfd(one.get())).valid();
  }();
  return known;
}

int64_t BootTime() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

absl::Status SignalProcess(int pidfd, int signal) {
  if (syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0) return absl::OkStatus();
  if (errno == ESRCH) return absl::NotFoundError("the process has exited");
  if (errno == EPERM) {
    return absl::PermissionDeniedError(
        "this daemon may not signal processes of other users: it needs the capability CAP_KILL "
        "(with systemd, the drop-in kill.conf)");
  }
  return absl::ErrnoToStatus(errno, "cannot signal the process");
}

bool MaySignalOthers() {
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  return (data[CAP_TO_INDEX(CAP_KILL)].effective & CAP_TO_MASK(CAP_KILL)) != 0;
}

uint64_t StartTimeOf(pid_t pid) { return ParseStartTime(ReadProc(pid, "stat").value_or("")); }

std::string CommandOf(pid_t pid) {
  return Printable(absl::StripSuffix(ReadProc(pid, "comm").value_or(""), "\n"));
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
    groups.resize(size / sizeof(gid_t));  // the kernel returns their number
  }
  groups.resize(size / sizeof(gid_t));
  identity.groups = std::move(groups);
  return identity;
}

absl::StatusOr<Peer> IdentifyPeer(int socket, const Acceptance& acceptance) {
  absl::StatusOr<PeerIdentity> identity = CredentialsOf(socket);
  if (!identity.ok()) return identity.status();
  const pid_t pid = identity->pid;
  if (pid <= 0) {
    return absl::FailedPreconditionError(
        "this process's PID namespace is hidden from the daemon, which must be able to watch it; "
        "run the daemon in the host's PID namespace (hostPID)");
  }
  absl::StatusOr<gpumem::UniqueFd> pidfd = PidfdOf(socket, pid, acceptance.by_number);
  if (!pidfd.ok()) return pidfd.status();
  Peer peer;
  peer.pidfd = *std::move(pidfd);
  peer.identity = *std::move(identity);
  const absl::StatusOr<pid_t> proc_pid = NumberInProc(peer.pidfd.get());
  if (!proc_pid.ok()) return proc_pid.status();
  if (absl::Status read = ReadFacts(*proc_pid, peer); !read.ok()) return read;
  peer.certain =
      !acceptance.by_number || HadBegun(peer.identity.start_time, acceptance.queue_empty_at);
  if (!peer.certain) {
    peer.identity.cgroup = Cgroup::Unknown(
        absl::StrCat("this kernel is older than 6.5, and cannot confirm that process ", pid,
                     ", which has just started, is the process that connected"));
  }
  // The facts from /proc belong to the process behind the pidfd only if that still lives.
  pollfd gone{peer.pidfd.get(), POLLIN, 0};
  if (poll(&gone, 1, 0) != 0) {
    return absl::UnavailableError("the process that connected has exited");
  }
  return peer;
}

size_t PidNamespacesOf(absl::string_view proc_pid_status) {
  for (absl::string_view line : absl::StrSplit(proc_pid_status, '\n')) {
    if (!absl::ConsumePrefix(&line, "NSpid:")) continue;
    const std::vector<absl::string_view> pids =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    return pids.size();
  }
  return 0;
}

absl::Status CheckPidNamespace(int socket) {
  const absl::StatusOr<PeerIdentity> identity = CredentialsOf(socket);
  if (!identity.ok()) return identity.status();
  absl::Status elsewhere =
      absl::FailedPreconditionError("its process is in another PID namespace, in a container");
  if (identity->pid <= 0) return elsewhere;
  const absl::StatusOr<gpumem::UniqueFd> pidfd =
      PidfdOf(socket, identity->pid, !KernelHasPeerPidfd());
  if (!pidfd.ok()) return pidfd.status();
  const absl::StatusOr<std::string> own = ReadFile("/proc/self/status");
  if (!own.ok()) return own.status();
  const absl::StatusOr<pid_t> proc_pid = NumberInProc(pidfd->get());
  if (!proc_pid.ok()) return proc_pid.status();
  const absl::StatusOr<std::string> status = ReadProc(*proc_pid, "status");
  if (!status.ok()) return status.status();
  // As in IdentifyPeer.
  pollfd gone{pidfd->get(), POLLIN, 0};
  if (poll(&gone, 1, 0) != 0) return absl::UnavailableError("the process has exited");
  if (status->empty() || PidNamespacesOf(*status) == PidNamespacesOf(*own)) return absl::OkStatus();
  return elsewhere;
}

absl::StatusOr<Peer> FindPeer(pid_t pid, uint64_t start_time) {
  const auto gone = [&] {
    return absl::NotFoundError(absl::StrCat("process ", pid, " has exited"));
  };
  if (pid <= 0) return gone();
  Peer peer;
  peer.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!peer.pidfd.valid()) {
    // The last two: a thread of another process has the number.
    if (errno == ESRCH || errno == EINVAL || errno == ENOENT) return gone();
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot watch process ", pid));
  }
  peer.identity.pid = pid;
  if (absl::Status read = ReadFacts(pid, peer); !read.ok()) return read;
  // As in IdentifyPeer.
  pollfd ended{peer.pidfd.get(), POLLIN, 0};
  if (poll(&ended, 1, 0) != 0) return gone();
  // An unknown start time is not read from the present process either: that may be another.
  const uint64_t present = std::exchange(peer.identity.start_time, start_time);
  peer.certain = start_time != 0 && present != 0;
  if (peer.certain && present != start_time) return gone();
  return peer;
}

}  // namespace gpumemd
