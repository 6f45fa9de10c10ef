// SPDX-License-Identifier: Apache-2.0
// The options of quota set and quota unset, and those that set a quota's keys in other commands.
#pragma once

#include <CLI/CLI.hpp>

#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// Each writes to `*command`, which outlives the app.
// Adds an option for each key of a quota but the parent.
void AddQuotaKeys(CLI::App* app, v1::Quota* quota);
void AddQuotaSetOptions(CLI::App* set, QuotaSetCommand* command);
void AddQuotaUnsetOptions(CLI::App* unset, QuotaUnsetCommand* command);

}  // namespace gpumem::cli
