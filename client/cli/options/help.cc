// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/help.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/text/table.h"

namespace gpumem::cli {
namespace {

constexpr size_t kColumns = 80;
// Where descriptions begin.
constexpr size_t kOptionColumn = 28;
constexpr size_t kCommandColumn = 16;

// Formats a name and its description, which is wrapped; below the name if that is too long.
std::string Row(const std::string& name, const std::string& what, size_t column) {
  std::string text = absl::StrCat("  ", name);
  if (what.empty()) return text + "\n";
  if (text.size() + 2 > column) {
    text += "\n";
  } else {
    text.resize(column, ' ');
  }
  bool first = text.back() != '\n';
  for (const std::string& line : Wrapped(what, kColumns - column)) {
    absl::StrAppend(&text, first ? "" : std::string(column, ' '), line, "\n");
    first = false;
  }
  return text;
}

std::vector<const CLI::Option*> Shown(const CLI::App& app, bool operands) {
  return app.get_options([operands](const CLI::Option* option) {
    return !option->get_group().empty() && option->nonpositional() != operands;
  });
}

std::string NamesOf(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  std::string text = absl::StrJoin(names, ", ");
  // "N" of "N:INT in [1 - 253]": the rest belongs to the parser.
  const std::string type = option.get_type_name().substr(0, option.get_type_name().find(':'));
  if (option.get_type_size() != 0 && !type.empty()) absl::StrAppend(&text, " ", type);
  if (option.get_required()) text += " (required)";
  return text;
}

std::vector<const CLI::App*> Subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
}

std::string Usage(const CLI::App& app) {
  std::string usage = absl::StrCat("Usage: ", FullName(app));
  for (const CLI::Option* operand : Shown(app, /*operands=*/true)) {
    const std::string name =
        operand->get_name(true) + (operand->get_expected_max() > 1 ? "..." : "");
    absl::StrAppend(&usage, " ", operand->get_required() ? name : absl::StrCat("[", name, "]"));
  }
  if (!Subcommands(app).empty()) {
    const bool alone = app.get_parent() != nullptr && app.get_require_subcommand_min() == 0;
    usage += alone ? " [COMMAND]" : " COMMAND";
  }
  return usage + " [OPTION]...\n";
}

// Returns the commands under the titles of their groups, in the order of definition.
std::string Commands(const CLI::App& app) {
  std::vector<std::string> groups;
  for (const CLI::App* sub : Subcommands(app)) {
    if (std::find(groups.begin(), groups.end(), sub->get_group()) == groups.end()) {
      groups.push_back(sub->get_group());
    }
  }
  std::string text;
  for (const std::string& group : groups) {
    absl::StrAppend(&text, "\n", group, ":\n");
    for (const CLI::App* sub : Subcommands(app)) {
      if (sub->get_group() != group) continue;
      text += Row(sub->get_name(), sub->get_description(), kCommandColumn);
    }
  }
  return text;
}

std::string Rows(const std::string& title, const std::vector<const CLI::Option*>& options) {
  if (options.empty()) return "";
  std::string text = absl::StrCat("\n", title, ":\n");
  for (const CLI::Option* option : options) {
    const bool operand = !option->nonpositional();
    text += Row(operand ? option->get_name(true) : NamesOf(*option), option->get_description(),
                kOptionColumn);
  }
  return text;
}

}  // namespace

std::string FullName(const CLI::App& app) {
  return app.get_parent() == nullptr
             ? app.get_name()
             : absl::StrCat(FullName(*app.get_parent()), " ", app.get_name());
}

std::string Overview(const CLI::App& app) {
  return absl::StrCat(
      app.get_description(), "\n\n", Usage(app), Commands(app),
      "\ngpumemctl help COMMAND tells more of a command, gpumemctl help of options\n"
      "and exit codes.\n");
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string /*name*/,
                                     CLI::AppFormatMode /*mode*/) const {
  std::string text = absl::StrCat(app->get_description(), "\n\n", Usage(*app),
                                  Rows("Arguments", Shown(*app, /*operands=*/true)));
  if (app->get_parent() == nullptr) {
    absl::StrAppend(&text, Commands(*app),
                    Rows("Options of every command", Shown(*app, /*operands=*/false)));
  } else {
    absl::StrAppend(&text, Rows("Options", Shown(*app, /*operands=*/false)), Commands(*app));
  }
  const std::string footer = app->get_footer();
  if (!footer.empty()) absl::StrAppend(&text, footer.front() == '\n' ? "" : "\n", footer, "\n");
  if (app->get_parent() != nullptr) {
    text += "\nOptions of every command: see gpumemctl help.\n";
  }
  return text;
}

}  // namespace gpumem::cli
