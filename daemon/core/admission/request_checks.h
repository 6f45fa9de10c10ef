// SPDX-License-Identifier: Apache-2.0
// Checks of a request against everything but room for its memory: what it asks for, counts of
// leases and waiters, whether leases may be revocable, and memory taken past the broker. A refusal
// with RESOURCE_EXHAUSTED counts as a denial of the tenant.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

// Of a lease, in characters.
inline constexpr size_t kMaxTag = 32;
// Returns OK for a tag, also for the empty one, which means none.
//   INVALID_ARGUMENT  it has more characters than that, or others than [A-Za-z0-9_.-]
absl::Status CheckTag(absl::string_view tag);

// What a request for memory comes to.
struct AcquireTerms {
  size_t device = 0;
  Kind kind = Kind::kVmm;
  uint64_t bytes = 0;  // of each segment, rounded up
};

// Returns the device, the kind and the size of the request's segments.
//   NOT_FOUND         there is no such device
//   INVALID_ARGUMENT  the request is for no bytes, too many segments, or more than the device has;
//                     or it names more devices than there are, or a malformed tag. Or it asks for
//                     scratch memory of a kind that cannot be suspended
//   UNIMPLEMENTED     the device does not make the kind, or the kind cannot be revocable
absl::StatusOr<AcquireTerms> CheckSpec(const LedgerState& state, const records::Tenant& tenant,
                                       const AcquireSpec& spec);

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
