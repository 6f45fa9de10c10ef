// SPDX-License-Identifier: Apache-2.0
// The model of sessions that come back after a restart, and ask once more for what they were
// granted.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

absl::Status Regrant(LedgerModel& model, SessionId session, uint64_t request, uint32_t count,
                     const std::optional<Operation>& answer);
absl::Status RegrantAttach(LedgerModel& model, SessionId session, uint64_t request,
                           const std::optional<Operation>& answer);
void DropRegrants(LedgerModel& model, SessionId session, const std::vector<uint64_t>& requests);
absl::Status Resume(LedgerModel& model, SessionId id, const PeerIdentity& peer,
                    const absl::Status& answer);
absl::Status Reconcile(LedgerModel& model, SessionId id, const std::vector<LeaseId>& leases,
                       const std::set<uint64_t>& requests,
                       const absl::StatusOr<std::vector<LeaseId>>& answer);

}  // namespace gpumemd::model
