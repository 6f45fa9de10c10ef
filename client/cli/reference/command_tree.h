// gpumemctl's commands and options as data, read from its own parser, so that what is generated
// from them (the man page, the completions of shells) says what the program does.
//
// Pure. Not thread-safe: the parser is asked while it is built.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace gpumem::cli {

// What a shell can offer for a value.
enum class Offer {
  kNothing,
  kWords,  // OptionReference::words
  kFiles,
  kFolders,
  kDevices,
  kDevicesEqual,  // the same with a '=' at the end, before a number of bytes
  kTenants,
  kPublications,
};

struct OptionReference {
  std::string name;        // "--limit"; of an operand "TENANT"
  std::string short_name;  // "-h"; mostly empty
  std::string value;       // "BYTES", "on|off"; empty where none follows
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
  std::vector<OptionReference> options;   // without those that are hidden
  std::string what;
  std::string footer;
  bool alone = false;  // makes sense without a subcommand

  // "quota set"; of gpumemctl itself: empty.
  std::string short_name() const;
};

// Each command before its subcommands: gpumemctl itself is the first.
std::vector<CommandReference> CommandsOf(const CLI::App& app);

// The options of gpumemctl itself that every command takes, too.
std::vector<OptionReference> OptionsEverywhere(const std::vector<CommandReference>& commands);

}  // namespace gpumem::cli
