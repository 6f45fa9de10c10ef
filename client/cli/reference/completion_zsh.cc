// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/reference/completions.h"
#include "client/cli/reference/offers.h"

namespace gpumem::cli {
namespace {

constexpr char kZshHead[] = R"zsh(#compdef gpumemctl
# zsh completion for gpumemctl. Generated from the program's own command line: do not edit.

# Each value of key $1 in what gpumemctl answers to the other arguments; nothing where it cannot.
_gpumemctl_ask() {
  local key=$1
  shift
  local -a folder
  local -i place=${gpumemctl_words[(I)--runtime-dir]}
  (( place )) && folder=(--runtime-dir "${gpumemctl_words[place + 1]}")
  timeout 2 gpumemctl $folder --json "$@" 2>/dev/null |
    grep -o "\"$key\": *\"[A-Za-z0-9._-]*\"" | sed 's/.*: *"//; s/"$//' | sort -u
}

_gpumemctl_offer() {
  local -a names=(${(f)"$(_gpumemctl_ask "${@[-2]}" ${=@[-1]})"})
  compadd "${@[1,-3]}" -a names
}
_gpumemctl_devices() { _gpumemctl_offer "$@" device_uuid devices }
_gpumemctl_devices_equal() { _gpumemctl_offer "$@" -S = device_uuid devices }
_gpumemctl_tenants() { _gpumemctl_offer "$@" tenant "quota list" }
_gpumemctl_publications() { _gpumemctl_offer "$@" name publications }
)zsh";

// Escapes text in an _arguments specification, in which ':' and brackets are punctuation.
std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {":", "\\:"}, {"[", "\\["}, {"]", "\\]"}});
}

std::string Action(const OptionReference& option) {
  switch (option.offer) {
    case Offer::kNothing:
      return " ";
    case Offer::kWords:
      return absl::StrCat("(", absl::StrJoin(option.words, " "), ")");
    case Offer::kFiles:
      return "_files";
    case Offer::kFolders:
      return "_files -/";
    case Offer::kDevices:
      return "_gpumemctl_devices";
    case Offer::kDevicesEqual:
      return "_gpumemctl_devices_equal";
    case Offer::kTenants:
      return "_gpumemctl_tenants";
    case Offer::kPublications:
      return "_gpumemctl_publications";
  }
  return "";
}

// Returns one argument of _arguments for each form of the option.
std::string Specifications(const OptionReference& option) {
  std::string out;
  for (const std::string& name : {option.short_name, option.name}) {
    if (name.empty()) continue;
    std::string text = absl::StrCat(option.repeatable ? "*" : "", name);
    // With '=' also as "--option=value".
    if (!option.value.empty() && name == option.name) text += "=";
    absl::StrAppend(&text, "[", Escaped(option.what), "]");
    if (!option.value.empty()) {
      // Several values: all words up to the next option.
      absl::StrAppend(&text, option.takes_several ? ":*-*" : "", ":", Escaped(option.value), ":",
                      Action(option));
    }
    absl::StrAppend(&out, " \\\n    ", InQuotes(text));
  }
  return out;
}

std::string FunctionOf(const std::string& command) {
  return "_" + absl::StrReplaceAll(command, {{" ", "__"}, {"-", "_"}});
}

std::string Leaf(const CommandReference& command, const std::string& options) {
  std::string arguments;
  for (const OptionReference& operand : command.operands) {
    const std::string optional = operand.required ? ":" : "::";
    absl::StrAppend(&arguments, " \\\n    ",
                    InQuotes(absl::StrCat(operand.repeatable ? "*:" : optional,
                                          Escaped(operand.name), ":", Action(operand))));
  }
  return absl::StrCat("  _arguments", options, arguments, "\n");
}

std::string Branch(const CommandReference& command, const std::vector<CommandReference>& commands,
                   const std::string& options) {
  std::string descriptions, calls;
  for (const std::string& name : command.subcommands) {
    const std::string full = command.name + " " + name;
    std::string what;
    for (const CommandReference& other : commands) {
      if (other.name == full) what = other.what;
    }
    absl::StrAppend(&descriptions, "        ", InQuotes(absl::StrCat(name, ":", Escaped(what))),
                    "\n");
    absl::StrAppend(&calls, "        ", name, ") ", FunctionOf(full), " ;;\n");
  }
  return absl::StrCat(
      "  local curcontext=\"$curcontext\" state line\n  typeset -A opt_args\n  _arguments -C",
      options,
      " \\\n    '1: :->command' \\\n    '*:: :->arguments'\n"
      "  case $state in\n    command)\n      local -a commands=(\n",
      descriptions,
      "      )\n      _describe -t commands command commands\n      ;;\n    arguments)\n"
      "      case $line[1] in\n",
      calls, "      esac\n      ;;\n  esac\n");
}

}  // namespace

std::string ZshCompletion(const std::vector<CommandReference>& commands) {
  std::string out = kZshHead;
  for (const CommandReference& command : commands) {
    std::string options;
    for (const OptionReference& option : OptionsOf(command, commands)) {
      options += Specifications(option);
    }
    absl::StrAppend(
        &out, "\n", FunctionOf(command.name), "() {\n",
        &command == &commands.front() ? "  local -a gpumemctl_words=(\"${words[@]}\")\n" : "",
        command.subcommands.empty() ? Leaf(command, options) : Branch(command, commands, options),
        "}\n");
  }
  return out + "\n_gpumemctl \"$@\"\n";
}

}  // namespace gpumem::cli
