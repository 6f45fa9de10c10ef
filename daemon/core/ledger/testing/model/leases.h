// SPDX-License-Identifier: Apache-2.0
// The model of leases: tickets, openings, and operations that end in leases.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

absl::Status BeginOpen(LedgerModel& model, SessionId session_id, absl::Span<const Secret> tickets,
                       bool revocable, uint64_t request_id,
                       const absl::StatusOr<Operation>& answer);
absl::Status Commit(LedgerModel& model, OperationId id, const absl::Status& answer);
void Abort(LedgerModel& model, OperationId id, bool handed_over);

// True if a release of the lease is trusted.
bool Trusts(const LedgerModel& model, const Lease& lease);
// Ends the lease. `unmapped`: its process does not map it any more.
void EndLease(LedgerModel& model, LeaseId id, bool unmapped);
absl::Status Release(LedgerModel& model, SessionId id, absl::Span<const LeaseId> leases,
                     const absl::Status& answer);
absl::Status Exchange(LedgerModel& model, SessionId session,
                      const std::vector<Exchanges::Pair>& pairs, bool check_only,
                      const absl::Status& answer);
absl::Status Share(LedgerModel& model, SessionId session, LeaseId lease, TicketScope scope,
                   const Secret& candidate, const absl::StatusOr<Secret>& answer);

}  // namespace gpumemd::model
