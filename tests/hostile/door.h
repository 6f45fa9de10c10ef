// SPDX-License-Identifier: Apache-2.0
// The ways into the daemon for an attacker, without libgpumem: sessions, and the byte streams on
// which the daemon speaks HTTP/2.
//
// If the runtime folder has an api.sock, any process gets a byte stream there, without a token. If
// not, the Welcome of a session brings one end of a socket pair that is this session's gRPC
// connection. Attacks ask for a byte stream and need not know which of both they get.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumem::hostile {

// How long an attacker waits for an answer that may never come.
inline constexpr absl::Duration kTimeout = absl::Seconds(3);

// A session, or where no session is needed a bare byte stream.
struct Seat {
  UniqueFd session;  // the session's socket, once welcomed
  UniqueFd stream;   // for HTTP/2
  std::string token;
};

// True if the daemon serves gRPC on a socket that any process may connect to.
bool HasApiSocket(const std::string& runtime_dir);

// Connects to one of the daemon's sockets. Statuses as of ConnectUnix.
absl::StatusOr<UniqueFd> Dial(const std::string& runtime_dir, absl::string_view name);

// Sends Hello and takes the Welcome's descriptors. With an api socket `stream` is a connection to
// that. `resume_token`: of the session to be moved to this connection; empty: a new session.
// `tenant`: to ask for; empty: any.
//   UNAVAILABLE  the daemon closed the connection, or did not answer
//   others       as in the daemon's Refusal, or by ConnectUnix
absl::StatusOr<Seat> TakeSeat(const std::string& runtime_dir, absl::string_view resume_token = {},
                              const std::string& tenant = "");

// Gets a byte stream with as little as the daemon asks for. Statuses as of TakeSeat.
absl::StatusOr<Seat> Knock(const std::string& runtime_dir);

}  // namespace gpumem::hostile
