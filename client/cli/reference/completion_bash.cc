// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/reference/completions.h"
#include "client/cli/reference/offers.h"

namespace gpumem::cli {
namespace {

// The script without the tables that follow it.
constexpr char kHead[] =
    R"bash(# bash completion for gpumemctl. Generated from the program's own command line: do not edit.

# Each value of key $1 in what gpumemctl answers to the other arguments; nothing where it cannot.
_gpumemctl_ask() {
  local key=$1
  shift
  timeout 2 gpumemctl ${gpumemctl_dir:+--runtime-dir "$gpumemctl_dir"} --json "$@" 2>/dev/null |
    grep -o "\"$key\": *\"[A-Za-z0-9._-]*\"" | sed 's/.*: *"//; s/"$//' | sort -u
}

# Completes $cur as a value of kind $1; what follows are the words of kind "words".
_gpumemctl_complete() {
  case $1 in
    words) mapfile -t COMPREPLY < <(compgen -W "$2" -- "$cur") ;;
    files)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$cur")
      ;;
    folders)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -d -- "$cur")
      ;;
    devices) _gpumemctl_complete words "$(_gpumemctl_ask device_uuid devices)" ;;
    devices=)
      compopt -o nospace 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -S = -W "$(_gpumemctl_ask device_uuid devices)" -- "$cur")
      ;;
    tenants) _gpumemctl_complete words "$(_gpumemctl_ask tenant quota list)" ;;
    publications) _gpumemctl_complete words "$(_gpumemctl_ask name publications)" ;;
  esac
}

_gpumemctl() {
  local cur=${COMP_WORDS[COMP_CWORD]} command=gpumemctl option= values=0 gpumemctl_dir=
  local subcommands options kind words several i word
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    case $word in
      =) ;; # "--option=value" comes as three words
      -*) option=$word values=0 ;;
      *)
        [[ $option == --runtime-dir && $values == 0 ]] && gpumemctl_dir=$word
        _gpumemctl_has "$command"
        if [[ " $subcommands " == *" $word "* ]]; then
          command+=" $word" option=
        fi
        values=$((values + 1))
        ;;
    esac
  done
  [[ $cur == = ]] && cur=

  _gpumemctl_value "$command" "$option"
  if [[ $kind && ($values == 0 || $several) && $cur != -* ]]; then
    _gpumemctl_complete "$kind" "$words"
    return
  fi
  _gpumemctl_has "$command"
  if [[ $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
    return
  fi
  _gpumemctl_operand "$command"
  [[ $kind ]] && _gpumemctl_complete "$kind" "$words"
  mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W "$subcommands" -- "$cur")
}

complete -F _gpumemctl gpumemctl
)bash";

std::string KindOf(Offer offer) {
  switch (offer) {
    case Offer::kNothing:
      return "anything";
    case Offer::kWords:
      return "words";
    case Offer::kFiles:
      return "files";
    case Offer::kFolders:
      return "folders";
    case Offer::kDevices:
      return "devices";
    case Offer::kDevicesEqual:
      return "devices=";
    case Offer::kTenants:
      return "tenants";
    case Offer::kPublications:
      return "publications";
  }
  return "";
}

std::string Value(const OptionReference& option) {
  std::string out = absl::StrCat("kind=", KindOf(option.offer));
  if (!option.words.empty()) {
    absl::StrAppend(&out, " words=", InQuotes(absl::StrJoin(option.words, " ")));
  }
  if (option.takes_several) out += " several=yes";
  return out;
}

}  // namespace

std::string BashCompletion(const std::vector<CommandReference>& commands) {
  std::string has, values, operands;
  for (const CommandReference& command : commands) {
    std::vector<std::string> names;
    for (const OptionReference& option : OptionsOf(command, commands)) {
      names.push_back(option.name);
      if (!option.short_name.empty()) names.push_back(option.short_name);
      if (option.value.empty()) continue;
      for (const std::string& name : {option.name, option.short_name}) {
        if (name.empty()) continue;
        absl::StrAppend(&values, "    ", InQuotes(absl::StrCat(command.name, " ", name)), ") ",
                        Value(option), " ;;\n");
      }
    }
    absl::StrAppend(&has, "    ", InQuotes(command.name),
                    ") subcommands=", InQuotes(absl::StrJoin(command.subcommands, " ")),
                    " options=", InQuotes(absl::StrJoin(names, " ")), " ;;\n");
    if (!command.operands.empty()) {
      absl::StrAppend(&operands, "    ", InQuotes(command.name), ") ",
                      Value(command.operands.front()), " ;;\n");
    }
  }
  const auto table = [](const char* what, const char* name, const char* key, const char* clear,
                        const std::string& rows) {
    return absl::StrCat("\n# ", what, "\n", name, "() {\n  ", clear, "\n  case ", key, " in\n",
                        rows, "  esac\n}\n");
  };
  return absl::StrCat(
      kHead,
      table("What the command $1 has.", "_gpumemctl_has", "$1", "subcommands= options=", has),
      table("What follows the option $2 of the command $1.", "_gpumemctl_value", "\"$1 $2\"",
            "kind= words= several=", values),
      table("What the command $1 is about.", "_gpumemctl_operand", "$1",
            "kind= words= several=", operands));
}

}  // namespace gpumem::cli
