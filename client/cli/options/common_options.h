// SPDX-License-Identifier: Apache-2.0
// The options that several commands share, and the treatment of deprecated ones.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// Adds the options that every command accepts. Writes to `*options`, which outlives the app, as in
// the functions below.
void AddGlobalOptions(CLI::App* app, GlobalOptions* options);

// --dry-run, and with `asks` also --yes. Commands that never ask have `yes` set: they look at their
// effects for --dry-run alone.
void AddCaution(CLI::App* app, Caution* caution, bool asks);

// --tenant: only objects of this tenant.
CLI::Option* AddTenantFilter(CLI::App* app, std::string* tenant);
// --device: only objects on this device.
CLI::Option* AddDeviceFilter(CLI::App* app, std::string* device);
// --as: the tenant that this process asks for. --tenant is its deprecated name.
void AddAs(CLI::App* app, std::string* tenant);

// Hides an option that `replacement` replaces. It still works, with a warning.
CLI::Option* Deprecate(CLI::Option* option, const std::string& replacement);
// Returns a warning for each deprecated option that was given to the app or a subcommand.
std::vector<std::string> Warnings(const CLI::App& app);

// True if these arguments ask for JSON. Also valid for a line that cannot be parsed.
bool WantsJson(const std::vector<std::string>& arguments);

}  // namespace gpumem::cli
