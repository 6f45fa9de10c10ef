// SPDX-License-Identifier: Apache-2.0
// The commands about gpumemctl itself: version and completion.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands/commands.h"
#include "client/cli/reference/command_tree.h"
#include "client/cli/reference/completions.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "common/version.h"

namespace gpumem::cli {

absl::Status Run(const CompletionCommand& command, const GlobalOptions& /*options*/) {
  std::vector<CommandReference> commands;
  WithParser([&commands](const CLI::App& app) { commands = CommandsOf(app); });
  switch (command.shell) {
    case Shell::kBash:
      Print(BashCompletion(commands));
      break;
    case Shell::kZsh:
      Print(ZshCompletion(commands));
      break;
    case Shell::kFish:
      Print(FishCompletion(commands));
      break;
  }
  return absl::OkStatus();
}

absl::Status Run(const VersionCommand& /*command*/, const GlobalOptions& options) {
  Json json = Json::object();
  json["gpumemctl"] = GPUMEM_VERSION;
  Print(options.json ? Document(json) : absl::StrCat("gpumemctl ", GPUMEM_VERSION, "\n"));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
