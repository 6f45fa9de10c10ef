// SPDX-License-Identifier: Apache-2.0
// Parser to data to text, with correct quoting for each language. tests/cli/completion_test.cc runs
// the result in shells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/cli/options/command_line.h"
#include "client/cli/reference/command_tree.h"
#include "client/cli/reference/completions.h"
#include "client/cli/reference/man_page.h"

namespace gpumem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<CommandReference> Real() {
  std::vector<CommandReference> commands;
  WithParser([&commands](const CLI::App& app) { commands = CommandsOf(app); });
  return commands;
}

TEST(ReferenceTest, ReadsTheParser) {
  CLI::App app("What it does.", "tool");
  bool flag = false;
  app.add_flag("--json", flag, "In JSON");
  CLI::App* sub = app.add_subcommand("pool", "Pools.");
  sub->require_subcommand(0, 1);
  CLI::App* set = sub->add_subcommand("set", "Set one.");
  std::string text;
  std::vector<std::string> texts;
  int count = 0;
  set->add_option("TENANT", text, "Which")->required();
  set->add_option("--kind", text, "How")->type_name("vmm|ipc");
  set->add_option("--device", text, "Where")->type_name("DEVICE");
  set->add_option("--count", count, "How many")->type_name("N")->check(CLI::Range(1, 253));
  set->add_option("--file", texts, "Files")->type_name("PATH");
  set->add_option("--secret", text, "Not shown")->group("");

  const std::vector<CommandReference> commands = CommandsOf(app);
  ASSERT_EQ(commands.size(), 3u);
  EXPECT_EQ(commands[0].name, "tool");
  EXPECT_FALSE(commands[0].alone);
  EXPECT_EQ(commands[1].name, "tool pool");
  EXPECT_TRUE(commands[1].alone);
  EXPECT_THAT(commands[1].subcommands, ElementsAre("set"));
  EXPECT_EQ(commands[2].short_name(), "pool set");
  ASSERT_EQ(commands[2].operands.size(), 1u);
  EXPECT_TRUE(commands[2].operands[0].required);
  EXPECT_EQ(commands[2].operands[0].offer, Offer::kTenants);

  const std::vector<OptionReference>& options = commands[2].options;
  ASSERT_EQ(options.size(), 5u);  // and --help
  EXPECT_EQ(options[0].short_name, "-h");
  EXPECT_EQ(options[0].value, "");
  EXPECT_THAT(options[1].words, ElementsAre("vmm", "ipc"));
  EXPECT_EQ(options[2].offer, Offer::kDevices);
  EXPECT_EQ(options[3].value, "N");
  EXPECT_EQ(options[3].what, "How many; 1 to 253");
  EXPECT_EQ(options[4].offer, Offer::kFiles);
  EXPECT_TRUE(options[4].takes_several);
  EXPECT_FALSE(options[3].takes_several);

  const std::vector<OptionReference> everywhere = OptionsEverywhere(commands);
  ASSERT_EQ(everywhere.size(), 1u);
  EXPECT_EQ(everywhere[0].name, "--json");
}

TEST(ReferenceTest, HasEveryCommandAndOption) {
  const std::vector<CommandReference> commands = Real();
  ASSERT_GT(commands.size(), 10u);
  const std::string man = absl::StrReplaceAll(ManPage(commands), {{"\\-", "-"}});
  const std::string bash = BashCompletion(commands);
  const std::string zsh = ZshCompletion(commands);
  const std::string fish = FishCompletion(commands);
  for (const CommandReference& command : commands) {
    if (!command.short_name().empty()) {
      EXPECT_THAT(man, HasSubstr(absl::StrCat("\n.SS ", command.short_name(), "\n")));
    }
    EXPECT_THAT(bash, HasSubstr(absl::StrCat("'", command.name, "'")));
    EXPECT_THAT(fish, HasSubstr(absl::StrCat("'", command.name, "'")));
    for (const OptionReference& option : command.options) {
      EXPECT_THAT(man, HasSubstr(absl::StrCat("\\fB", option.name, "\\fR")));
      EXPECT_THAT(bash, HasSubstr(option.name));
      EXPECT_THAT(zsh, HasSubstr(option.name));
      EXPECT_THAT(fish, HasSubstr(" -l " + option.name.substr(2)));
    }
  }
  EXPECT_THAT(man, HasSubstr("\n.SH EXIT STATUS\n.TP\n\\fB0\\fR\nsuccess\n"));
  EXPECT_THAT(man, HasSubstr("\n.SH EXAMPLES\n"));
  EXPECT_THAT(man, Not(HasSubstr("Options of every command")));
  EXPECT_THAT(man, Not(HasSubstr("eprecated")));
}

void ExpectHelpOf80Columns(const CLI::App& app) {
  const std::string help = app.help();
  for (absl::string_view line : absl::StrSplit(help, '\n')) EXPECT_LE(line.size(), 80u) << line;
  // Internals of the parser.
  for (const char* const word : {"Excludes:", "Needs:", " OR {", "(1x)", "REQUIRED", " TEXT"}) {
    EXPECT_THAT(help, Not(HasSubstr(word)));
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    ExpectHelpOf80Columns(*sub);
  }
}

TEST(ReferenceTest, HelpFitsInto80Columns) { WithParser(ExpectHelpOf80Columns); }

TEST(ReferenceTest, TextMeansNothingToTheLanguageThatItIsIn) {
  CLI::App app("'It' does.", "tool");
  CLI::App* sub = app.add_subcommand("a", ".x it's a\\b [1]: $(date)");
  sub->footer("Example: tool a\n.TH is text");
  bool flag = false;
  sub->add_flag("--flag", flag, "it's [a]: \\b");
  const std::vector<CommandReference> commands = CommandsOf(app);

  const std::string man = ManPage(commands);
  EXPECT_THAT(man, HasSubstr("\n\\&'It' does.\n"));
  EXPECT_THAT(man, HasSubstr("\n\\&.x it's a\\eb [1]: $(date)\n"));
  EXPECT_THAT(man, HasSubstr("\n\\&.TH is text\n"));
  EXPECT_THAT(ZshCompletion(commands), HasSubstr("'--flag[it'\\''s \\[a\\]\\: \\\\b]'"));
  EXPECT_THAT(FishCompletion(commands), HasSubstr("-d 'it\\'s [a]: \\\\b'"));
}

}  // namespace
}  // namespace gpumem::cli
