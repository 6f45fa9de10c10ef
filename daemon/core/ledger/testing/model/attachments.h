// SPDX-License-Identifier: Apache-2.0
// The model of attaching to publications, and of waits for a version.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

absl::Status BeginAttach(LedgerModel& model, SessionId id, const AttachSpec& spec,
                         const absl::StatusOr<Admission>& answer);
void LeaveAttachQueue(LedgerModel& model, WaiterId id);
// Ends the waits of one session, or of all.
void EndAttachWaitsOf(LedgerModel& model, std::optional<SessionId> session);
absl::Status TakeAttachable(LedgerModel& model, const std::vector<WaiterId>& answer);
absl::Status EndAttachWait(LedgerModel& model, WaiterId id, bool expired,
                           const absl::Status& answer);

}  // namespace gpumemd::model
