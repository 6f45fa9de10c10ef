// What the session server says and hears on a client's socket, where the client is
// assumed hostile. Stateless functions on a non-blocking SEQPACKET socket; none waits.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumemd {

// Before anything else is done with an accepted socket. A packet then comes with its
// sender's credentials, which tells an empty one from the end of the connection.
void PrepareClientSocket(int socket);

// The next message. File descriptors that come with it are closed, and not waited for.
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
