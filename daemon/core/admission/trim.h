// SPDX-License-Identifier: Apache-2.0
// Gives up retained segments, so that a request fits.
#pragma once

#include <cstdint>

#include "daemon/core/admission/standing.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/segments.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

// Dooms retained segments until the `fresh` segments of the request would fit once these, and those
// releasing already, are destroyed. `claims`: of the waiters before it.
void TrimForShortfall(const LedgerState& state, Segments& segments, const records::Request& request,
                      uint32_t fresh, const Claims& claims);

}  // namespace gpumemd
