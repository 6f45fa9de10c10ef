// SPDX-License-Identifier: Apache-2.0
// The model of revoking revocable leases.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/limits.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

// Takes segments of the lowest priority first, and among these the newest first, as far as each
// helps against a shortage. Returns none unless all of them together suffice.
std::vector<SegmentId> SegmentsToRevoke(const LedgerModel& model, const Request& request,
                                        const std::vector<Limit>& limits, const Claims& claims);
void BeginRevocation(LedgerModel& model, SegmentId id, absl::Time now);
absl::Status TakeRevoked(LedgerModel& model, const std::vector<SessionId>& answer);
absl::Time NextOverdue(const LedgerModel& model);
absl::Status TakeOverdue(LedgerModel& model, absl::Time now,
                         const std::vector<Revocations::Overdue>& answer);

}  // namespace gpumemd::model
