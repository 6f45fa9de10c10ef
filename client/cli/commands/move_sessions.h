// SPDX-License-Identifier: Apache-2.0
// Moves the memory of one session, or of all sessions of a tenant, as an operator.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cli/effects/session_effects.h"
#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// How much longer than a session the daemon may take for its answer, which names the rest.
inline constexpr absl::Duration kMoveAnswerMargin = absl::Seconds(2);

// How long a session may take: --timeout.
absl::Duration MoveTimeout(const GlobalOptions& options);

struct SessionSelection {
  uint64_t session = 0;
  std::string tenant;  // not empty: instead of `session`, all of it and of those below it
  std::string tag;     // only leases with it; empty: all
};

// Asks the sessions, and prints what they have done. Those of a tenant are asked side by side, and
// one that fails leaves the others alone.
//   CANCELLED  the answer to the question was not yes
//   NOT_FOUND  there is no such session or tenant
//   else       the first status of SuspendSession, ResumeSession, DemoteSession or PromoteSession
//   in
//              proto/gpumem/v1/admin.proto that is not OK
absl::Status MoveSessions(SessionMove move, const SessionSelection& selection,
                          const Caution& caution, const GlobalOptions& options);

}  // namespace gpumem::cli
