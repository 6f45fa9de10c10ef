// The first exchange on the session socket.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "common/unique_fd.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumem::internal {

struct Welcomed {
  UniqueFd socket;
  v1::Welcome welcome;
};

// Connects to the session socket in `runtime_dir`, says Hello and waits for the answer.
//   UNAVAILABLE        no daemon there, or it went away
//   DEADLINE_EXCEEDED  it did not answer
//   UNIMPLEMENTED      it speaks another version of the protocol
//   others             the daemon's refusal, in its words
absl::StatusOr<Welcomed> Greet(const std::string& runtime_dir, const ConnectOptions& options,
                               absl::Time deadline);

}  // namespace gpumem::internal
