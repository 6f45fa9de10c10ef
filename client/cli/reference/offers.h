// SPDX-License-Identifier: Apache-2.0
// Shared parts of the completions of several shells.
#pragma once

#include <string>
#include <vector>

#include "client/cli/reference/command_tree.h"

namespace gpumem::cli {

// Returns a word quoted for bash and zsh: in single quotes.
std::string InQuotes(const std::string& text);

// Returns the command's options and those that every command takes.
std::vector<OptionReference> OptionsOf(const CommandReference& command,
                                       const std::vector<CommandReference>& commands);

}  // namespace gpumem::cli
