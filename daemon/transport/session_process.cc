// SPDX-License-Identifier: Apache-2.0
// The process of a session: who it is, a pidfd of it, and signals to it.
#include <fcntl.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/unique_fd.h"
#include "daemon/transport/peer/peer.h"
#include "daemon/transport/session_server.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

absl::Status NotCertain(const Peer& peer) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the daemon cannot confirm that process ", peer.identity.pid,
      " is the process of the session: this kernel is older than 6.5, or /proc hides "
      "the process and it has not reconnected since a restart; find out whether it is, "
      "and end it by hand"));
}

absl::Status NoSuchSession(SessionId session) {
  return absl::NotFoundError(absl::StrCat("there is no session ", ToInt(session)));
}

}  // namespace

absl::StatusOr<SessionServer::Recognition> SessionServer::WhoIs(SessionId session) {
  absl::MutexLock lock(&mutex_);
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return absl::UnavailableError("the session has ended");
  return Recognition{it->second->peer.identity, it->second->match};
}

absl::StatusOr<UniqueFd> SessionServer::ProcessOf(SessionId session) {
  const ConnectionPtr connection = FindSession(session);  // keeps the pidfd open
  if (connection == nullptr) return NoSuchSession(session);
  if (!connection->peer.certain) return NotCertain(connection->peer);
  UniqueFd process(fcntl(connection->peer.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  if (process.valid()) return process;
  return absl::ResourceExhaustedError(
      "the daemon has no file descriptors left; raise its LimitNOFILE");
}

absl::Status SessionServer::Signal(SessionId session, int signal) {
  const ConnectionPtr connection = FindSession(session);
  if (connection == nullptr) return NoSuchSession(session);
  const Peer& peer = connection->peer;
  if (!peer.certain) return NotCertain(peer);
  absl::Status sent = SignalProcess(peer.pidfd.get(), signal);
  if (sent.ok()) return sent;
  return absl::Status(sent.code(), absl::StrCat("process ", peer.identity.pid, " of session ",
                                                ToInt(session), ": ", sent.message()));
}

}  // namespace gpumemd
