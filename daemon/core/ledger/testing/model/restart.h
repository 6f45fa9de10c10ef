// SPDX-License-Identifier: Apache-2.0
// The model of a daemon's end and of its successor: the surviving sessions, and what they hold.
#pragma once

#include "absl/status/status.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

absl::Status Restart(LedgerModel& model, const Survivors& survivors, const Restored& answer);

}  // namespace gpumemd::model
