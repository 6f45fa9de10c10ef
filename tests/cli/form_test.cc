// SPDX-License-Identifier: Apache-2.0
// What every command has: the forms of its output, and the question before others lose something.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/terminal_fixture.h"

namespace gpumem {
namespace {

using demo::Process;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FormTest : public TerminalTest {};

TEST_F(FormTest, TablesObeyTheFormOfTheOutput) {
  json held;
  std::unique_ptr<Process> holder = Hold({"--size", "2MiB"}, &held);
  auto wide = InTerminal({"ps", "-o", "wide"}, {.rows = 24, .columns = 60});
  EXPECT_EQ(wide->Wait(Soon()), 0);
  EXPECT_THAT(PlainText(wide->written()), AllOf(HasSubstr("UID"), HasSubstr("COMMAND")));
  const std::string bare = Run({"segments", "--no-headers"}).text;
  EXPECT_THAT(bare, AllOf(HasSubstr(tenant_), Not(HasSubstr("SEGMENT"))));
  EXPECT_EQ(Run({"segments", "-o", "json"}).AsJson()["segments"].size(), 1u);
  EXPECT_THAT(Run({"map", "--color", "always"}).text, HasSubstr("\x1b["));
  EXPECT_EQ(Run({"status", "--timeout", "1m"}).code, 0);
  EXPECT_EQ(Run({"status", "--timeout", "soon"}).code, 2);
  End(*holder);
}

// The alternate screen would take it away at the end.
TEST_F(FormTest, ANumberOfRefreshesStaysOnTheTerminal) {
  auto top = InTerminal({"top", "--iterations", "1"});
  EXPECT_EQ(top->Wait(Soon()), 0);
  EXPECT_THAT(top->written(), HasSubstr("TENANT"));
  EXPECT_THAT(top->written(), Not(HasSubstr("\x1b[?1049h")));
}

TEST_F(FormTest, ATerminalIsAskedBeforeOthersLoseSomething) {
  auto no = InTerminal({"drain"});
  ASSERT_TRUE(no->WaitFor("Continue? [y/N]", Soon())) << no->written();
  EXPECT_THAT(PlainText(no->written()), HasSubstr("no new sessions or requests are admitted"));
  no->Type("n\n");
  EXPECT_EQ(no->Wait(Soon()), 1);
  EXPECT_EQ(Run({"status", "--json"}).AsJson()["draining"], false);

  // The end of input is no, also behind a word.
  auto end = InTerminal({"drain"});
  ASSERT_TRUE(end->WaitFor("Continue? [y/N]", Soon())) << end->written();
  end->Type("y\x04\x04");
  EXPECT_EQ(end->Wait(Soon()), 1);
  EXPECT_THAT(PlainText(end->written()), HasSubstr("\ngpumemctl: nothing was changed"));
  EXPECT_EQ(Run({"status", "--json"}).AsJson()["draining"], false);

  auto yes = InTerminal({"drain"});
  ASSERT_TRUE(yes->WaitFor("Continue? [y/N]", Soon())) << yes->written();
  yes->Type("y\n");
  EXPECT_EQ(yes->Wait(Soon()), 0);
  EXPECT_EQ(Run({"status", "--json"}).AsJson()["draining"], true);

  // Without a question: what takes nothing, and what --yes answers.
  EXPECT_EQ(InTerminal({"undrain"})->Wait(Soon()), 0);
  EXPECT_EQ(InTerminal({"trim"})->Wait(Soon()), 0);
  EXPECT_EQ(InTerminal({"drain", "--yes"})->Wait(Soon()), 0);
}

}  // namespace
}  // namespace gpumem
