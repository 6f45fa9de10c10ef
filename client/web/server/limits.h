// SPDX-License-Identifier: Apache-2.0
// What a peer may take of the server. Peers are assumed hostile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace gpumem::web {

struct Limits {
  size_t connections = 1024;
  size_t connections_of_user = 128;  // the users of connections that have not logged in are one
  uint32_t header_bytes = 8 * 1024;  // of the request line, and of the fields
  uint64_t body_bytes = 4 * 1024;
  // Deadline for a request to arrive once it has begun, and for the first one to begin.
  absl::Duration request = absl::Seconds(10);
  // Deadline for the next request on a connection that has had one.
  absl::Duration keep_alive = absl::Seconds(150);
  // Deadline for a peer to take a part of what it is sent, and the whole of an answer or of a
  // message of a stream.
  absl::Duration progress = absl::Seconds(30);
  absl::Duration answer = absl::Seconds(60);
  // Unsent messages of a stream. A larger snapshot is sent nevertheless.
  size_t stream_bytes = 4 * 1024 * 1024;
  // Unsent answers and messages of all connections, those that share a text counted once.
  size_t unsent_bytes = size_t{256} * 1024 * 1024;
  // Interval of comments on a stream. They keep proxies from closing it.
  absl::Duration heartbeat = absl::Seconds(15);
  // Documents that are being made for one user, or sent to the user. Further requests wait.
  size_t documents_of_user = 4;
  // Threads that may block for the daemon, and as many for a directory service.
  size_t threads = 4;
};

}  // namespace gpumem::web
