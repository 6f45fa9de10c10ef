// SPDX-License-Identifier: Apache-2.0
// What all parts of the ledger work on. The ledger owns it, and its parts refer to it.
#pragma once

#include "daemon/core/ledger/change_log.h"
#include "daemon/core/ledger/effects.h"
#include "daemon/core/ledger/inspect/auditor.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

struct LedgerBase {
  LedgerState state;
  ChangeLog changes;  // for the journal
  Auditor auditor{&state};
  Effects effects;
};

}  // namespace gpumemd
