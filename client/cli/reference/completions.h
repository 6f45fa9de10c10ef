// SPDX-License-Identifier: Apache-2.0
// Shell completions for gpumemctl's command line: commands, options, words and files. For the names
// of devices, tenants and publications they query the daemon.
#pragma once

#include <string>
#include <vector>

#include "client/cli/reference/command_tree.h"

namespace gpumem::cli {

// For /usr/share/bash-completion/completions/gpumemctl. Requires only bash.
std::string BashCompletion(const std::vector<CommandReference>& commands);
// For a folder of zsh's $fpath, as _gpumemctl.
std::string ZshCompletion(const std::vector<CommandReference>& commands);
// For /usr/share/fish/vendor_completions.d/gpumemctl.fish.
std::string FishCompletion(const std::vector<CommandReference>& commands);

}  // namespace gpumem::cli
