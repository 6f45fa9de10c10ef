// SPDX-License-Identifier: Apache-2.0
#include "client/cli/reference/command_tree.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/options/values.h"

namespace gpumem::cli {
namespace {

// "vmm|ipc" are words to type; "A|B" is a description.
bool AreWords(const std::string& value) {
  return absl::StrContains(value, '|') && std::none_of(value.begin(), value.end(), [](char c) {
           return absl::ascii_isupper(static_cast<unsigned char>(c));
         });
}

Offer OfferFor(const OptionReference& option, bool operand) {
  if (AreWords(option.value) || option.value == "LIMIT") return Offer::kWords;
  if (option.value == "PATH" || option.value == "FILE") return Offer::kFiles;
  if (option.value == "DIR") return Offer::kFolders;
  if (option.value == "DEVICE") return Offer::kDevices;
  if (option.value == "DEVICE=BYTES") return Offer::kDevicesEqual;
  if (absl::StrContains(option.value, "TENANT")) {
    return Offer::kTenants;
  }
  if (operand && option.name == "NAME") return Offer::kPublications;
  return Offer::kNothing;
}

std::vector<std::string> WordsOf(const std::string& value) {
  if (value != "LIMIT") return absl::StrSplit(value, '|');
  std::vector<std::string> names;
  for (const auto& [option, field] : LimitFields()) names.push_back(option);
  return names;
}

// Formats "INT in [1 - 253]" of CLI::Range for people.
std::string Bounds(absl::string_view check) {
  const size_t open = check.find('[');
  if (open == absl::string_view::npos || !absl::ConsumeSuffix(&check, "]")) return "";
  const std::vector<std::string> bounds = absl::StrSplit(check.substr(open + 1), " - ");
  return bounds.size() == 2 ? absl::StrCat("; ", bounds[0], " to ", bounds[1]) : "";
}

OptionReference ReferenceTo(const CLI::Option& option) {
  const bool operand = !option.nonpositional();
  OptionReference reference{.what = option.get_description(),
                            .required = option.get_required(),
                            .repeatable = option.get_expected_max() > 1};
  if (operand) {
    reference.name = option.get_name(true);
    reference.value = reference.name;
    // An operand of fixed words has them as its type.
    if (AreWords(option.get_type_name())) {
      reference.offer = Offer::kWords;
      reference.words = WordsOf(option.get_type_name());
      return reference;
    }
  } else {
    if (!option.get_lnames().empty()) reference.name = "--" + option.get_lnames().front();
    if (!option.get_snames().empty()) {
      const std::string name = "-" + option.get_snames().front();
      (reference.name.empty() ? reference.name : reference.short_name) = name;
    }
    if (option.get_type_size() != 0) {
      // "N", or with a check "N:INT in [1 - 253]"
      const std::vector<std::string> type = absl::StrSplit(option.get_type_name(), ':');
      reference.value = type.front();
      if (type.size() > 1) reference.what += Bounds(type[1]);
    }
  }
  reference.takes_several = reference.repeatable && option.get_allow_extra_args();
  reference.offer = OfferFor(reference, operand);
  if (reference.offer == Offer::kWords) reference.words = WordsOf(reference.value);
  return reference;
}

void AddCommand(const CLI::App& app, const std::string& before,
                std::vector<CommandReference>* commands) {
  const std::string name = before.empty() ? app.get_name() : before + " " + app.get_name();
  CommandReference command{
      .name = name,
      .what = app.get_description(),
      .footer = app.get_footer(),
      .alone = !before.empty() && app.get_require_subcommand_min() == 0,
  };
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    (option->nonpositional() ? command.options : command.operands).push_back(ReferenceTo(*option));
  }
  const std::vector<const CLI::App*> subcommands =
      app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
  for (const CLI::App* sub : subcommands) command.subcommands.push_back(sub->get_name());
  commands->push_back(std::move(command));
  for (const CLI::App* sub : subcommands) AddCommand(*sub, name, commands);
}

}  // namespace

std::string CommandReference::short_name() const {
  const size_t space = name.find(' ');
  return space == std::string::npos ? "" : name.substr(space + 1);
}

std::vector<CommandReference> CommandsOf(const CLI::App& app) {
  std::vector<CommandReference> commands;
  AddCommand(app, "", &commands);
  return commands;
}

std::vector<OptionReference> OptionsEverywhere(const std::vector<CommandReference>& commands) {
  std::vector<OptionReference> options;
  for (const OptionReference& option : commands.front().options) {
    if (option.name != "--help" && option.name != "--version") options.push_back(option);
  }
  return options;
}

}  // namespace gpumem::cli
