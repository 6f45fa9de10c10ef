// SPDX-License-Identifier: Apache-2.0
// The model of interprocess events.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

absl::Status RegisterEvent(LedgerModel& model, SessionId session, const Events::Place& place,
                           const std::string& device, const ExportData& handle, uint64_t request,
                           const absl::StatusOr<IpcEventId>& answer);
absl::Status GetEvents(LedgerModel& model, SessionId session, const Events::Place& place,
                       const absl::StatusOr<std::vector<IpcEventView>>& answer);
absl::Status UnregisterEvent(LedgerModel& model, SessionId session, IpcEventId id,
                             const absl::StatusOr<bool>& answer);

}  // namespace gpumemd::model
