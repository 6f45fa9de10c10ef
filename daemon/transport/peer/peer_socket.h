// What the session server says and hears on a client's socket, where the client is
// assumed hostile. Stateless functions on a non-blocking SEQPACKET socket; none waits.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumemd {

// Before anything else is done with a listening socket for which descriptors make no
// sense. Kernels that can refuse them at their source (Linux 6.16) do so from then on,
// for the sockets accepted from it too. On others a file that takes long to close can hold
// up the thread that closes it: a TCP socket with SO_LINGER where gRPC reads, a file of
// FUSE everywhere.
void RefuseDescriptors(int listener);

// Before anything else is done with an accepted socket. A packet then comes with its
// sender's credentials, which tells an empty one from the end of the connection.
void PrepareClientSocket(int socket);

// The next message. File descriptors that come with it are closed.
//   DEADLINE_EXCEEDED  there is none yet
//   UNAVAILABLE        the client has closed the socket
//   INVALID_ARGUMENT   it carried descriptors, or no bytes
//   DATA_LOSS          it was larger than a message may be
absl::StatusOr<std::string> ReceiveFromClient(int socket);

// Sends `message`, if the client reads, after which nothing follows: the client can send
// no more, and what it has sent is thrown away, lest it find a reset connection in place
// of our last word.
void SendLast(int socket, const gpumem::v1::ServerMessage& message);

// `text` with '?' for every byte that is not printable ASCII: what a client chose must
// break neither the log's lines nor the UTF-8 of a protocol's string.
std::string Printable(absl::string_view text);

}  // namespace gpumemd
