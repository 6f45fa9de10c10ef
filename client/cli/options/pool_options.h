// SPDX-License-Identifier: Apache-2.0
// The options of the commands about the driver's memory pools.
#pragma once

#include <CLI/CLI.hpp>

#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// Each writes to `*command`, which outlives the app.
void AddPoolSetOptions(CLI::App* set, PoolSetCommand* command);
void AddPoolTrimOptions(CLI::App* trim, PoolTrimCommand* command);

}  // namespace gpumem::cli
