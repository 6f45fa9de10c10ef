// SPDX-License-Identifier: Apache-2.0
// Checks whether the ledger's state is consistent.
#pragma once

#include "absl/status/status.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

// Returns INTERNAL with a sentence that names the first violated invariant. Takes time in
// proportion to the whole state: for tests only.
absl::Status CheckInvariants(const LedgerState& ledger);
// The same for publications, and for those who wait to attach to one.
absl::Status CheckPublications(const LedgerState& state);
// The same for the counts of tenants that were made at run time.
absl::Status CheckMadeTenants(const LedgerState& state);

// The same for one segment: as one that is suspended, or moves to or from the host tier.
absl::Status CheckSuspended(const LedgerState& state, SegmentId id,
                            const records::Segment& segment);

}  // namespace gpumemd
