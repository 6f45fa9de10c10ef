// SPDX-License-Identifier: Apache-2.0
// The model of waiting requests: their order, and when they are answered.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/limits.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

// True if `request` is served before `other`, whichever came first.
bool GoesBefore(const LedgerModel& model, const Request& request, const Request& other);
// Returns the claims of the waiters before this one.
Claims ClaimsBefore(const LedgerModel& model, WaiterId id);
void LeaveQueue(LedgerModel& model, WaiterId id);
absl::Status AdmitWaiting(LedgerModel& model, const std::vector<AdmissionControl::Admitted>& answer,
                          absl::Time now);

// Checks that no session waits for memory that is available.
absl::Status CheckWaitersMustWait(const LedgerModel& model);
absl::Status EndWait(LedgerModel& model, WaiterId id, bool expired, const absl::Status& answer);
absl::Status CompareWaiters(const LedgerModel& model, const Ledger& ledger,
                            const std::string& tenant, const std::string& device, absl::Time now);

}  // namespace gpumemd::model
