// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/cli/reference/completions.h"

namespace gpumem::cli {
namespace {

constexpr char kFishHead[] =
    R"fish(# fish completion for gpumemctl. Generated from the program's own command line: do not edit.

# Each value of key $argv[1] in what gpumemctl answers to the other arguments; nothing where it
# cannot.
function __gpumemctl_ask
    set -l folder
    set -l words (commandline -opc)
    if set -l place (contains -i -- --runtime-dir $words)
        set folder --runtime-dir $words[(math $place + 1)]
    end
    timeout 2 gpumemctl $folder --json $argv[2..-1] 2>/dev/null |
        string match -ar "\"$argv[1]\": *\"[A-Za-z0-9._-]*\"" |
        string replace -r '.*: *"(.*)"' '$1' | sort -u
end

# Whether the command line so far is the command $argv.
function __gpumemctl_at
    set -l command gpumemctl
    for word in (commandline -opc)[2..-1]
        if contains -- "$command $word" $__gpumemctl_commands
            set command "$command $word"
        end
    end
    test "$command" = "$argv"
end

)fish";

std::string InFishQuotes(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// Returns the flags of `complete` for a value.
std::string Values(const OptionReference& option) {
  switch (option.offer) {
    case Offer::kNothing:
      return " -x";
    case Offer::kWords:
      return absl::StrCat(" -x -a ", InFishQuotes(absl::StrJoin(option.words, " ")));
    case Offer::kFiles:
      return " -r -F";
    case Offer::kFolders:
      return " -x -a '(__fish_complete_directories)'";
    case Offer::kDevices:
      return " -x -a '(__gpumemctl_ask device_uuid devices)'";
    case Offer::kDevicesEqual:
      return " -x -a '(__gpumemctl_ask device_uuid devices)='";
    case Offer::kTenants:
      return " -x -a '(__gpumemctl_ask tenant quota list)'";
    case Offer::kPublications:
      return " -x -a '(__gpumemctl_ask name publications)'";
  }
  return "";
}

std::string Completion(const std::string& condition, const OptionReference& option) {
  std::string out = absl::StrCat("complete -c gpumemctl", condition);
  if (!option.short_name.empty()) absl::StrAppend(&out, " -s ", option.short_name.substr(1));
  absl::StrAppend(&out, " -l ", absl::StripPrefix(option.name, "--"));
  if (!option.value.empty()) out += Values(option);
  return absl::StrCat(out, " -d ", InFishQuotes(option.what), "\n");
}

}  // namespace

std::string FishCompletion(const std::vector<CommandReference>& commands) {
  std::string out = absl::StrCat(kFishHead, "set -g __gpumemctl_commands");
  for (const CommandReference& command : commands) {
    absl::StrAppend(&out, " ", InFishQuotes(command.name));
  }
  out += "\n\ncomplete -c gpumemctl -f\n";
  for (const OptionReference& option : OptionsEverywhere(commands)) out += Completion("", option);
  for (const CommandReference& command : commands) {
    const bool program = &command == &commands.front();
    const std::string condition =
        absl::StrCat(" -n ", InFishQuotes(absl::StrCat("__gpumemctl_at ", command.name)));
    absl::StrAppend(&out, "\n# ", command.name, "\n");
    for (const CommandReference& sub : commands) {
      for (const std::string& name : command.subcommands) {
        if (sub.name != absl::StrCat(command.name, " ", name)) continue;
        absl::StrAppend(&out, "complete -c gpumemctl", condition, " -a ", name, " -d ",
                        InFishQuotes(sub.what), "\n");
      }
    }
    for (const OptionReference& operand : command.operands) {
      if (operand.offer == Offer::kNothing) continue;
      // For an operand, -x and -r have no effect.
      absl::StrAppend(&out, "complete -c gpumemctl", condition,
                      absl::StripPrefix(Values(operand), " -x"), "\n");
    }
    for (const OptionReference& option : command.options) {
      const bool everywhere = program && option.name != "--help" && option.name != "--version";
      if (!everywhere) out += Completion(condition, option);
    }
  }
  return out;
}

}  // namespace gpumem::cli
