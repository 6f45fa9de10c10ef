// SPDX-License-Identifier: Apache-2.0
// Identifies the peer of a unix socket, as the kernel reports it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/unique_fd.h"
#include "daemon/core/identity/rules.h"

namespace gpumemd {

struct Peer {
  PeerIdentity identity;
  std::string command;     // /proc/PID/comm, unprintable bytes replaced
  gpumem::UniqueFd pidfd;  // readable once the process has ended (pidfd_open(2))
  // True if the pidfd is of the process that connected. Else it may be of a process that reuses its
  // pid.
  bool certain = true;
};

// Returns the socket's record of its peer, as of connect(2): all but the cgroup and the start time.
absl::StatusOr<PeerIdentity> CredentialsOf(int socket);

// True if sockets identify the peer's process (SO_PEERPIDFD, Linux 6.5), and not only its pid.
bool KernelHasPeerPidfd();

// How a socket was accepted. Matters on kernels before 6.5 only.
struct Acceptance {
  // A moment of BootTime() at which the listener's queue was empty: peers accepted later also
  // connected later. 0: unknown.
  int64_t queue_empty_at = 0;
  bool by_number = !KernelHasPeerPidfd();  // tests set it to act as an older kernel
};

// Returns nanoseconds since boot (CLOCK_BOOTTIME), the clock of processes' start times.
int64_t BootTime();

// Returns the group at the root of this process's cgroup namespace, by the machine's names
// (cgroup_namespace.h). The first call determines it for the life of the process; without one, the
// first peer does. Call it at the start, while descriptors are certainly available. Empty if the
// kernel's names suffice: the namespace is the machine's, or this process is not at its root, so
// that its peers may be in it. Thread-safe.
//   FAILED_PRECONDITION  the machine's groups are not visible; with the consequences and advice
absl::StatusOr<std::string> FindGroupNames();

// Returns the process that connected this socket. All facts were read from that process while it
// lived, even if its pid is reused:
//
// - The socket names the process by a pidfd (SO_PEERPIDFD). A pid is reused only after its process
//   has been reaped, and the pidfd is readable before that. So if the pidfd is not readable
//   afterwards, what /proc reported under the pid belongs to that process. The pid is the one in
//   this /proc (fdinfo of the pidfd).
// - Before Linux 6.5 a pidfd is opened by pid alone, which another process may have by now. It is
//   the peer's if its process has been running since before the listener's queue was last empty:
//   then it had the pid all the time. If that cannot be shown, its cgroup is "unknown", so that the
//   rules bill by uid, which the socket itself records.
//
//   FAILED_PRECONDITION  it lives in a PID namespace that this daemon cannot see
//   UNAVAILABLE          it has already ended
//   other                /proc cannot be read now: this process has no descriptor left, for example
absl::StatusOr<Peer> IdentifyPeer(int socket, const Acceptance& acceptance = {});

// Returns the depth of a process's PID namespace below that of /proc's mounter, from the text of
// /proc/PID/status. 0 if the text does not contain it (pid_namespaces(7); NSpid in
// proc_pid_status(5)).
size_t PidNamespacesOf(absl::string_view proc_pid_status);

// Checks that the process that connected this socket is in this process's PID namespace, and not in
// one below it, as processes of a container are. OK also if unknown, because /proc hides other
// users' processes (hidepid). Before Linux 6.5 the process is identified by its pid alone.
//   FAILED_PRECONDITION  it is not
//   UNAVAILABLE          it has already ended
//   other                as IdentifyPeer
absl::Status CheckPidNamespace(int socket);

// Returns the process that had this pid and start time before, with its present cgroup and command.
// The caller fills in uid and gids. Where /proc hides the start time now, or did then (0), the
// process that has the pid may be another: Peer::certain is false. It is returned all the same,
// since the one that is meant may live and have memory mapped.
//   NOT_FOUND  it has ended
//   other      as IdentifyPeer; it may live
absl::StatusOr<Peer> FindPeer(pid_t pid, uint64_t start_time);

// Sends a signal to the process behind the pidfd, never to one that reuses its pid.
//   NOT_FOUND          it has ended
//   PERMISSION_DENIED  it is another user's, and this process has no CAP_KILL
//   (pidfd_send_signal(2))
absl::Status SignalProcess(int pidfd, int signal);
// True if this process may signal other users' processes (CAP_KILL, capabilities(7)).
bool MaySignalOthers();

// Returns the start time in the text of /proc/PID/stat; 0 if it has none.
uint64_t ParseStartTime(absl::string_view proc_pid_stat);

// Returns the start time of a process; 0 if no process has that pid.
uint64_t StartTimeOf(pid_t pid);

// Returns the process's name (/proc/PID/comm), with '?' for unprintable bytes. Empty if there is no
// such process.
std::string CommandOf(pid_t pid);

}  // namespace gpumemd
