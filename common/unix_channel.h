// SPDX-License-Identifier: Apache-2.0
// Messages with file descriptors over a SEQPACKET unix socket (unix(7)).
//
// One message is one packet of at most kMaxMessageBytes and kMaxMessageFds
// descriptors. Every descriptor received is close-on-exec. Stateless functions on a
// socket: each call is atomic, so threads may share a socket for sending.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"

namespace gpumem {

inline constexpr size_t kMaxMessageBytes = 64 * 1024;
inline constexpr size_t kMaxMessageFds = 253;  // SCM_MAX_FD in the Linux kernel

struct UnixMessage {
  std::string bytes;
  std::vector<UniqueFd> fds;
};

// Listens on `path` (mode `mode`, close-on-exec, non-blocking). Replaces a stale socket file
// without a listener.
//   ALREADY_EXISTS    another process listens there
//   INVALID_ARGUMENT  the path is too long for a unix socket (107 bytes)
//   others            as the operating system says
absl::StatusOr<UniqueFd> ListenUnix(const std::string& path, int type, unsigned mode);

// Connects to the socket at `path`, close-on-exec, blocking. Waits until `deadline` while the
// listener's queue of connections is full.
//   UNAVAILABLE          no process listens there
//   DEADLINE_EXCEEDED    the listener does not accept connections
//   PERMISSION_DENIED    its mode keeps this process out
//   FAILED_PRECONDITION  it is a socket of another type
//   INVALID_ARGUMENT     the path is too long
//
// `named`: gives the socket a unique name (unix(7), autobind), by which the listener can tell it
// from all other present sockets.
absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path, int type,
                                     absl::Time deadline = absl::InfiniteFuture(),
                                     bool named = false);

// Sends one message. Waits until `deadline` for room in the peer's queue.
//   DEADLINE_EXCEEDED   the peer does not read
//   UNAVAILABLE         the peer is gone
//   RESOURCE_EXHAUSTED  too many of this user's descriptors are sent and not received
//   INVALID_ARGUMENT    no bytes (that would look like the end), or too many of
//                       bytes or descriptors
absl::Status SendMessage(int socket, absl::string_view bytes, absl::Span<const int> fds,
                         absl::Time deadline);

// Receives one message. Waits until `deadline`; absl::InfinitePast() never waits.
//   DEADLINE_EXCEEDED  nothing came
//   UNAVAILABLE        the peer has closed (or sent a packet of no bytes: they look alike)
//   DATA_LOSS          the message was larger than allowed, or carried more
//                      descriptors than fit or than this process may still open;
//                      all of them are closed
absl::StatusOr<UnixMessage> ReceiveMessage(int socket, absl::Time deadline);

}  // namespace gpumem
