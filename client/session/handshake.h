// SPDX-License-Identifier: Apache-2.0
// The first exchange on the session socket.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumem::internal {

struct Greeting {
  std::string name;          // empty: the program's
  std::string tenant;        // empty: the first that the rules allow
  std::string resume_token;  // empty: a new session
  uint32_t connect_id = 0;   // shared by all attempts to begin one new session; 0: none
};

// Connects to the session socket in `runtime_dir` and says Hello.
//   UNAVAILABLE        no daemon is there, or it went away
//   DEADLINE_EXCEEDED  it does not accept connections
absl::StatusOr<UniqueFd> SayHello(const std::string& runtime_dir, const Greeting& greeting,
                                  absl::Time deadline);

// Blocks until the answer to Hello. `refused`: set to true if the daemon refused the session.
//   UNAVAILABLE        the daemon went away, or is about to; `refused` if it says that this is for
//                      good
//   DEADLINE_EXCEEDED  it has not answered; it may still do so
//   UNIMPLEMENTED      it speaks another version of the protocol
//   others             the daemon's refusal, in its words
//   RESOURCE_EXHAUSTED  this process may open no more files; or the daemon's refusal
struct Welcomed {
  v1::Welcome welcome;
  UniqueFd api;  // the session's gRPC connection
};
absl::StatusOr<Welcomed> HearWelcome(int socket, const std::string& runtime_dir,
                                     absl::Time deadline, bool* refused);

}  // namespace gpumem::internal
