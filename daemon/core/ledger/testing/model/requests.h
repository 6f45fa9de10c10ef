// SPDX-License-Identifier: Apache-2.0
// The model of requests for memory: what they are answered, and what they are granted.
#pragma once

#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/testing/model/limits.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

// Returns the segments that the request would reuse.
std::set<SegmentId> Reusable(const LedgerModel& model, const Request& request);
absl::Status BeginAcquire(LedgerModel& model, SessionId id, const AcquireSpec& spec, absl::Time now,
                          const absl::StatusOr<Admission>& answer);

// Gives up and revokes the segments that the request needs and may take.
void MakeRoom(LedgerModel& model, const Request& request, const std::set<SegmentId>& reused,
              const Decision& decision, const Claims& claims, absl::Time now);
// Checks that the operation is the grant of the request, and does the same here.
absl::Status Grant(LedgerModel& model, SessionId session, const Request& request,
                   const std::set<SegmentId>& reused, absl::Time now, const Operation& answer);

}  // namespace gpumemd::model
