// SPDX-License-Identifier: Apache-2.0
// The options of the commands that show state: each function adds those of one subcommand.
#pragma once

#include <CLI/CLI.hpp>

#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// Each writes to `*command`, which outlives the app.
void AddTopOptions(CLI::App* app, TopCommand* command);
void AddUsageOptions(CLI::App* app, UsageCommand* command);
void AddMapOptions(CLI::App* app, MapCommand* command);
void AddEventsOptions(CLI::App* app, EventsCommand* command);
void AddTraceOptions(CLI::App* app, TraceCommand* command);
void AddTraceShowOptions(CLI::App* app, TraceShowCommand* command);
void AddDescribeOptions(CLI::App* app, DescribeCommand* command);

}  // namespace gpumem::cli
