// SPDX-License-Identifier: Apache-2.0
// Messages of the session server on a client's socket; the client is assumed hostile. Stateless
// functions on a non-blocking SEQPACKET socket; none waits.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumemd {

// Refuses descriptors on a listening socket. Call before any other use of it. Kernels that can
// refuse them at the source (Linux 6.16) do so, also for accepted sockets. On older ones a file
// that takes long to close can block the thread that closes it: a TCP socket with SO_LINGER where
// gRPC reads, a FUSE file everywhere.
void RefuseDescriptors(int listener);

// Prepares an accepted socket. Call before any other use of it. Each packet then carries its
// sender's credentials, which distinguishes an empty packet from the end of the connection.
void PrepareClientSocket(int socket);

// Returns the next message. Closes file descriptors that come with it.
//   DEADLINE_EXCEEDED  there is none yet
//   UNAVAILABLE        the client has closed the socket
//   INVALID_ARGUMENT   it carried descriptors, or no bytes
//   DATA_LOSS          it was larger than a message may be
absl::StatusOr<std::string> ReceiveFromClient(int socket);

// Sends `message`, if the client reads, as the last one. Shuts down the client's direction and
// discards what it has sent. Otherwise the client could see a reset connection in place of the
// message.
void SendLast(int socket, const gpumem::v1::ServerMessage& message);

// Returns `text` with '?' for every byte that is not printable ASCII. Text from a client must not
// break the log's lines or the UTF-8 of a protocol's string.
std::string Printable(absl::string_view text);

}  // namespace gpumemd
