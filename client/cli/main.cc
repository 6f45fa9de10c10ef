// SPDX-License-Identifier: Apache-2.0
// gpumemctl: shows and changes the state of gpumemd. Maps the command line to a command, and the
// command's status to an exit code.
#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/exit_code.h"
#include "client/cli/options/command_line.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/printable.h"
#include "common/endpoints.h"

namespace gpumem::cli {
namespace {

// Prints an error to stderr, as one line of JSON or as text.
void PrintError(const absl::Status& status, bool json) {
  const std::string text =
      json ? DocumentLine(ErrorJson(status))
           : absl::StrCat("gpumemctl: ", PrintableLines(status.message()), "\n");
  std::fputs(text.c_str(), stderr);
}

void PrintWarning(const std::string& warning, bool json) {
  const std::string text = json ? DocumentLine(WarningJson(warning))
                                : absl::StrCat("gpumemctl: warning: ", warning, "\n");
  std::fputs(text.c_str(), stderr);
}

int Main(const std::vector<std::string>& arguments) {
  CommandLine line = ParseCommandLine(arguments);
  if (!line.error.empty()) {
    PrintError(absl::InvalidArgumentError(absl::StrCat(line.error, "; see gpumemctl help")),
               line.global.json);
    return kExitUsage;
  }
  for (const std::string& warning : line.warnings) PrintWarning(warning, line.global.json);
  if (!line.command) {  // help or version
    Print(line.text);
    return kExitOk;
  }
  if (line.global.runtime_dir.empty()) line.global.runtime_dir = ClientRuntimeDir();
  // One overload of Run for each command: commands.h.
  const absl::Status status =
      std::visit([&](const auto& command) { return Run(command, line.global); }, *line.command);
  if (!status.ok() && !status.GetPayload(kSilentPayload).has_value()) {
    PrintError(status, line.global.json);
  }
  return ExitCodeOf(status);
}

}  // namespace
}  // namespace gpumem::cli

int main(int argc, char** argv) {
  return gpumem::cli::Main(std::vector<std::string>(argv + 1, argv + argc));
}
