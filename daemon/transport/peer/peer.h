// Who is at the other end of a unix socket, by the kernel's word.
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
  std::string command;     // /proc/PID/comm, as far as it is printable
  gpumem::UniqueFd pidfd;  // readable once the process is gone (pidfd_open(2))
  // The pidfd is of the process that connected. Else it may be of one that has got its number.
  bool certain = true;
};

// What the socket itself knows of its peer, as of connect(2): all but the cgroup and the start
// time.
absl::StatusOr<PeerIdentity> CredentialsOf(int socket);

// Whether sockets know their peer's process itself (SO_PEERPIDFD, Linux 6.5), not just its number.
bool KernelHasPeerPidfd();

// What is known of how a socket was accepted. It counts on kernels before 6.5 alone.
struct Acceptance {
  // A moment of BootTime() at which the listener's queue was empty: whoever is accepted after it
  // has connected after it. 0: unknown.
  int64_t queue_empty_at = 0;
  bool by_number = !KernelHasPeerPidfd();  // tests set it to do as such a kernel does
};

// Nanoseconds since boot (CLOCK_BOOTTIME), as the start times of processes count.
int64_t BootTime();

// How the control groups of peers are named, all the time that this process lives: found out by the
// first call, or by the first peer where there was none (cgroup_namespace.h). To be called at the
// start, when nobody can have taken the descriptors that it takes. The group at the root of this
// process's cgroup namespace, by the machine's names; empty where the kernel's names serve: the
// namespace is the machine's, or this process is not at its root, so that those may be in it whom
// it serves. Thread-safe.
//   FAILED_PRECONDITION  the machine's groups are not to be seen; what that means, and what helps
absl::StatusOr<std::string> FindGroupNames();

// The process that connected this socket. What is told of it was read while it lived, and was
// read of it and no other, however often its number is given out again:
//
// - The socket names the process by a pidfd (SO_PEERPIDFD). A number is given out again only when
//   its process has been reaped; before that the pidfd is readable. So what /proc says under the
//   number is said of the process behind the pidfd if that is not readable afterwards. The number
//   is the one by which this /proc knows it (fdinfo of the pidfd).
// - Before Linux 6.5 a pidfd is had by number alone, and that may be another process's by now. It
//   is the one that connected if it has been running since before the listener's queue was last
//   empty: then it had the number all the time. Where that cannot be shown, its cgroup is
//   "unknown", so that the rules bill by uid, which the socket itself knows.
//
//   FAILED_PRECONDITION  it lives in a PID namespace that this daemon cannot see
//   UNAVAILABLE          it is gone already
absl::StatusOr<Peer> IdentifyPeer(int socket, const Acceptance& acceptance = {});

// In how many PID namespaces a process is, from that of whoever mounted /proc on, by the text of
// /proc/PID/status; 0 where that does not say (pid_namespaces(7); NSpid in proc_pid_status(5)).
size_t PidNamespacesOf(absl::string_view proc_pid_status);

// Whether the process that connected this socket is in this process's PID namespace, and not in one
// below it, as those of a container are. Where /proc shows others' processes to nobody (hidepid),
// that is not known, and OK. Before Linux 6.5 the process is known by its number alone.
//   FAILED_PRECONDITION  it is not
//   UNAVAILABLE          it is gone already
absl::Status CheckPidNamespace(int socket);

// The process that was known by this number and start time before, with what is known of it now.
// Its uid and gids are left to the caller.
//   NOT_FOUND  it is gone, or cannot be told from another that has its number now
absl::StatusOr<Peer> FindPeer(pid_t pid, uint64_t start_time);

// Sends a signal to the process behind the pidfd, never to one that has got its number since.
//   NOT_FOUND          it is gone
//   PERMISSION_DENIED  it is another user's, and this process has no CAP_KILL
//   (pidfd_send_signal(2))
absl::Status SignalProcess(int pidfd, int signal);
// Whether this process may signal those of other users (CAP_KILL, capabilities(7)).
bool MaySignalOthers();

// When the process started, by the text of /proc/PID/stat; 0 where that does not say.
uint64_t ParseStartTime(absl::string_view proc_pid_stat);

// The same of a process; 0 where there is none of that number.
uint64_t StartTimeOf(pid_t pid);

// Its name (/proc/PID/comm), as far as it is printable; empty where there is none.
std::string CommandOf(pid_t pid);

}  // namespace gpumemd
