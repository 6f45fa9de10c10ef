// SPDX-License-Identifier: Apache-2.0
// Compares the model's tenants, sessions and segments with those that the ledger shows.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

// Checks that all that the ledger lists for one tenant and device is the same as here.
absl::Status CompareFiltered(const LedgerModel& model, const Ledger& ledger,
                             const std::string& tenant, const std::string& device, absl::Time now);

// Checks that every tenant, session and segment that the ledger lists is the same as here.
absl::Status Compare(const LedgerModel& model, const Ledger& ledger, absl::Time now);

}  // namespace gpumemd::model
