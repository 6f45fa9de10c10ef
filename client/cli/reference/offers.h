// What the completions of several shells have in common.
#pragma once

#include <string>
#include <vector>

#include "client/cli/reference/command_tree.h"

namespace gpumem::cli {

// A word as bash and zsh read it: in single quotes.
std::string InQuotes(const std::string& text);

// Those of the command itself and those that every command takes.
std::vector<OptionReference> OptionsOf(const CommandReference& command,
                                       const std::vector<CommandReference>& commands);

}  // namespace gpumem::cli
