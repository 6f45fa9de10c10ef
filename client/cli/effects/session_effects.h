// SPDX-License-Identifier: Apache-2.0
// What gpumemctl suspend, resume, demote and promote would change for sessions. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/effects/effects.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::cli {

enum class SessionMove { kSuspend, kResume, kDemote, kPromote };

// The name of its command: "suspend".
absl::string_view NameOf(SessionMove move);

// Of a move of one session's memory.
//   NOT_FOUND  there is no such live session in the list
absl::StatusOr<Effects> SessionMoveEffects(SessionMove move, uint64_t session,
                                           absl::string_view tag,
                                           const v1::ListSessionsResponse& sessions, bool exact);

// Returns the live sessions of the tenant, and of those below it, that have memory to move so.
//   NOT_FOUND  there is no such tenant in the list
absl::StatusOr<std::vector<v1::SessionInfo>> SessionsToMove(
    SessionMove move, absl::string_view tenant, const v1::ListTenantsResponse& tenants,
    const v1::ListSessionsResponse& sessions);

// Of a move of the memory of `sessions`, as of SessionsToMove.
Effects SessionsMoveEffects(SessionMove move, absl::string_view tag,
                            const std::vector<v1::SessionInfo>& sessions, bool exact);

}  // namespace gpumem::cli
