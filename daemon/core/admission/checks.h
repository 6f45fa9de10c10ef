// SPDX-License-Identifier: Apache-2.0
// Checks of a request against everything but memory: counts of sessions, calls, leases and waiters,
// whether leases may be revocable, and memory taken past the broker. Each refusal counts as a
// denial of the tenant.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

// `predecessor`: the tenant's session that ends as the new one begins. It may be another user's.
//   RESOURCE_EXHAUSTED  the tenant, the user or the daemon has too many sessions
absl::Status CheckSessionCount(const LedgerState& state, records::Tenant& tenant, uid_t uid,
                               std::optional<SessionId> predecessor);

//   RESOURCE_EXHAUSTED  the tenant has too many calls in flight
absl::Status CheckInFlight(records::Tenant& tenant);

//   RESOURCE_EXHAUSTED  with `more` leases, the session, its tenant or the daemon had too many
absl::Status CheckLeaseCount(const LedgerState& state, records::Session& session, size_t more);

//   RESOURCE_EXHAUSTED  the tenant, one above it, or the daemon has too many waiting requests
absl::Status CheckWaiting(const LedgerState& state, records::Tenant& tenant);

//   FAILED_PRECONDITION  the session's process holds firm leases and revocable ones are asked for,
//                        or the reverse; or revocable leases are asked for and the process could
//                        not be ended
absl::Status CheckLeaseType(const LedgerState& state, const records::Session& session,
                            bool revocable);

//   RESOURCE_EXHAUSTED  the tenant took memory past the broker, and gets no more meanwhile
absl::Status CheckUnbrokered(const LedgerState& state, records::Tenant& tenant, uint64_t bytes);

}  // namespace gpumemd
