// SPDX-License-Identifier: Apache-2.0
// Refusals that several parts of the ledger give.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/core/denial.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

absl::Status Draining();                      // UNAVAILABLE
absl::Status SessionEnded();                  // ABORTED
absl::Status TenantEnded(absl::string_view);  // FAILED_PRECONDITION
absl::Status LostSegment(SegmentId segment);  // FAILED_PRECONDITION
absl::Status NoSuchLease(LeaseId lease);      // NOT_FOUND

// Counts the denial in the tenant's statistics, and returns it as RESOURCE_EXHAUSTED.
absl::Status Deny(records::Tenant& tenant, const Denial& denial);
// The same for a count. `limited`: the tenant whose limit it is, if that is another one.
absl::Status DenyCount(records::Tenant& tenant, Denial::Cause cause, uint64_t asked, uint64_t used,
                       uint64_t limit, absl::string_view help,
                       const records::Tenant* limited = nullptr);

// Removes from a denial the holders that the session may not be told of.
void HideHolders(const LedgerState& state, SessionId session, HoldersShown shown, Denial& denial);

}  // namespace gpumemd
