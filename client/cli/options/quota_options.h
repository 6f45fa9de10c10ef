// SPDX-License-Identifier: Apache-2.0
// The options of quota set and quota unset.
#pragma once

#include <CLI/CLI.hpp>

#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// Each writes to `*command`, which outlives the app.
void AddQuotaSetOptions(CLI::App* set, QuotaSetCommand* command);
void AddQuotaUnsetOptions(CLI::App* unset, QuotaUnsetCommand* command);

}  // namespace gpumem::cli
