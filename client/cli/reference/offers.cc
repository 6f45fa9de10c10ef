// SPDX-License-Identifier: Apache-2.0
#include "client/cli/reference/offers.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace gpumem::cli {

std::string InQuotes(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::vector<OptionReference> OptionsOf(const CommandReference& command,
                                       const std::vector<CommandReference>& commands) {
  std::vector<OptionReference> options = command.options;
  if (&command == &commands.front()) return options;
  for (const OptionReference& option : OptionsEverywhere(commands)) options.push_back(option);
  return options;
}

}  // namespace gpumem::cli
