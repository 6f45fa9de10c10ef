// Who is at the other end of a unix socket, by the kernel's word.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/unique_fd.h"
#include "daemon/core/rules.h"

namespace gpumemd {

struct Peer {
  PeerIdentity identity;
  std::string command;     // /proc/PID/comm, as far as it is printable
  gpumem::UniqueFd pidfd;  // readable once the process is gone (pidfd_open(2))
};

// What the socket itself knows of its peer: all but the cgroup and the start time.
absl::StatusOr<PeerIdentity> CredentialsOf(int socket);

// The process that connected this socket.
//   FAILED_PRECONDITION  it lives in a PID namespace that this daemon cannot see
//   UNAVAILABLE          it is gone already
absl::StatusOr<Peer> IdentifyPeer(int socket);

// When the process started, by the text of /proc/PID/stat; 0 where that does not say.
uint64_t ParseStartTime(absl::string_view proc_pid_stat);

// The same of a process; 0 where there is none of that number.
uint64_t StartTimeOf(pid_t pid);

// Its name (/proc/PID/comm), as far as it is printable; empty where there is none.
std::string CommandOf(pid_t pid);

// The cgroup path in the text of /proc/PID/cgroup (cgroups(7)): the unified hierarchy's
// where the process is in one of its groups, else that of systemd's own hierarchy, else
// the first other. Empty where there is none.
std::string ParseCgroup(absl::string_view proc_pid_cgroup);

}  // namespace gpumemd
