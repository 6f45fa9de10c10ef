// SPDX-License-Identifier: Apache-2.0
// The options of the commands that work with memory: each function adds those of one subcommand.
#pragma once

#include <CLI/CLI.hpp>

#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// Each writes to `*command`, which outlives the app.
void AddHoldOptions(CLI::App* app, HoldCommand* command);
void AddRunOptions(CLI::App* app, RunCommand* command);
void AddPublishOptions(CLI::App* app, PublishCommand* command);
void AddFetchOptions(CLI::App* app, FetchCommand* command);
void AddVerifyOptions(CLI::App* app, VerifyCommand* command);

}  // namespace gpumem::cli
