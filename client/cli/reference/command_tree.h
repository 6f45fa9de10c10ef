// SPDX-License-Identifier: Apache-2.0
// gpumemctl's commands and options as data, read from its parser. So the output generated from them
// (the man page, the completions of shells) always matches the program.
//
// Pure. Not thread-safe: the parser is queried while it is built.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace gpumem::cli {

// The completions that a shell can offer for a value.
enum class Offer {
  kNothing,
  kWords,  // OptionReference::words
  kFiles,
  kFolders,
  kDevices,
  kDevicesEqual,  // with a trailing '=', before a number of bytes
  kTenants,
  kPublications,
};

struct OptionReference {
  std::string name;        // "--limit"; of an operand "TENANT"
  std::string short_name;  // "-h"; mostly empty
  std::string value;       // "BYTES", "on|off"; empty if it takes none
  std::string what;
  bool required = false;
  bool repeatable = false;
  bool takes_several = false;  // values, one after another: --file A B
  Offer offer = Offer::kNothing;
  std::vector<std::string> words;
};

struct CommandReference {
  std::string name;                       // "gpumemctl quota set"
  std::vector<std::string> subcommands;   // "get", "list"
  std::vector<OptionReference> operands;  // in their order
  std::vector<OptionReference> options;   // except hidden ones
  std::string what;
  std::string footer;
  bool alone = false;  // valid without a subcommand

  // Returns "quota set"; empty for gpumemctl itself.
  std::string short_name() const;
};

// Returns each command before its subcommands: gpumemctl itself is the first.
std::vector<CommandReference> CommandsOf(const CLI::App& app);

// Returns gpumemctl's own options that every command also accepts.
std::vector<OptionReference> OptionsEverywhere(const std::vector<CommandReference>& commands);

}  // namespace gpumem::cli
