// SPDX-License-Identifier: Apache-2.0
// The subcommands while the parser is built: their names and texts, and the command that a line
// selects.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// The groups of gpumemctl's help, in its order.
inline constexpr char kShowing[] = "Commands that show the state";
inline constexpr char kUsing[] = "Commands that use memory";
inline constexpr char kChanging[] = "Commands that change the state";
inline constexpr char kOther[] = "Other commands";
// The group of subcommands of subcommands.
inline constexpr char kCommands[] = "Commands";

// Requires that the app and the set are destroyed together. Not thread-safe.
class CommandSet {
 public:
  explicit CommandSet(CLI::App* app) : app_(app) {}
  CommandSet(const CommandSet&) = delete;
  CommandSet& operator=(const CommandSet&) = delete;

  template <typename C>
  struct Added {
    CLI::App* app;
    C* command;  // lives as long as the app
  };

  // Adds a subcommand. A line that ends with it selects the command.
  template <typename C>
  Added<C> Add(CLI::App* parent, const std::string& group, const std::string& name,
               const std::string& what, const std::string& footer) {
    const auto command = std::make_shared<C>();
    CLI::App* sub = parent->add_subcommand(name, what);
    sub->group(group);
    sub->footer(footer);
    // Parents finish after their children: the innermost subcommand is the result.
    sub->final_callback([this, command] {
      if (!selected_) selected_ = [command] { return Command(*command); };
    });
    return {sub, command.get()};
  }
  // The same, below gpumemctl itself.
  template <typename C>
  Added<C> Add(const std::string& group, const std::string& name, const std::string& what,
               const std::string& footer) {
    return Add<C>(app_, group, name, what, footer);
  }

  // Returns the selected command's maker; empty if the line has none.
  const std::function<Command()>& selected() const { return selected_; }

 private:
  CLI::App* const app_;
  std::function<Command()> selected_;
};

// Each adds the commands of one group, with their options.
void AddShowingCommands(CommandSet* commands);
void AddUsingCommands(CommandSet* commands);
void AddChangingCommands(CommandSet* commands);

}  // namespace gpumem::cli
