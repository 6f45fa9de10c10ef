// SPDX-License-Identifier: Apache-2.0
// The handwritten man pages and the programs: each option, and each key of the configuration, is in
// both or in none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "tests/demo/process.h"

namespace gpumem {
namespace {

using ::testing::Contains;
using Keys = std::set<std::string>;

std::string OutputOf(const std::vector<std::string>& argv) {
  demo::Process process({.argv = argv, .stderr_too = true});
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  std::string text;
  while (auto line = process.ReadLine(deadline)) absl::StrAppend(&text, *line, "\n");
  process.Wait(deadline);
  return text;
}

std::string Page(const std::string& name) {
  std::ifstream in("deploy/man/" + name);
  EXPECT_TRUE(in.is_open()) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

Keys AllMatches(const std::string& text, const std::string& pattern) {
  Keys found;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    found.insert((*it)[1]);
  }
  return found;
}

// Returns the terms after .TP, in the part of the page that `heading` begins.
std::vector<std::string> Terms(const std::string& page, const std::string& heading) {
  std::vector<std::string> terms;
  bool inside = false, term = false;
  for (absl::string_view line : absl::StrSplit(page, '\n')) {
    if (absl::StartsWith(line, ".SH ") || absl::StartsWith(line, ".SS ")) {
      inside = line.substr(4) == heading;
    }
    if (inside && term) terms.push_back(absl::StrReplaceAll(line, {{"\\-", "-"}, {"\\ ", " "}}));
    term = line == ".TP";
  }
  EXPECT_FALSE(terms.empty()) << "nothing under " << heading;
  return terms;
}

Keys OptionsInPage(const std::string& name) {
  Keys options;
  for (const std::string& term : Terms(Page(name), "OPTIONS")) {
    options.merge(AllMatches(term, "(--[a-z-]+)"));
  }
  return options;
}

TEST(ManTest, OptionsOfTheDaemon) {
  // In --help each begins a line.
  const Keys help =
      AllMatches(OutputOf({"daemon/gpumemd", "--help"}), "\n +(?:-[a-z],)?(--[a-z-]+)");
  EXPECT_THAT(help, Contains("--config"));
  EXPECT_EQ(OptionsInPage("gpumemd.8"), help);
}

TEST(ManTest, OptionsOfTheKeeper) {
  const Keys help =
      AllMatches(OutputOf({"daemon/keeper/gpumem-keeper", "--help"}), "(?:\n  |, )(--[a-z-]+)");
  EXPECT_THAT(help, Contains("--max-fds"));
  EXPECT_EQ(OptionsInPage("gpumem-keeper.8"), help);
}

TEST(ManTest, OptionsOfThePage) {
  const Keys help =
      AllMatches(OutputOf({"client/web/gpumem-web", "--help"}), "\n +(?:-[a-z],)?(--[a-z-]+)");
  EXPECT_THAT(help, Contains("--listen"));
  EXPECT_EQ(OptionsInPage("gpumem-web.8"), help);
}

class ConfigurationPage : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gpumem-man-XXXXXX";
    ASSERT_NE(mkdtemp(path), nullptr);
    dir_ = path;
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }

  // Returns the daemon's output for this configuration.
  std::string Check(const std::string& text) {
    const std::string file = dir_ + "/gpumemd.toml";
    std::ofstream(file) << text;
    return OutputOf({"daemon/gpumemd", "--config", file, "--check-config"});
  }

  // The keys that may stand after `text`, which the daemon lists where one is none of them.
  Keys Known(const std::string& text) {
    const std::string answer = Check(text + "\n" + std::string(40, 'z') + " = 1\n");
    const size_t list = answer.find("known here: ");
    if (list == std::string::npos) {
      ADD_FAILURE() << "after \"" << text << "\" the daemon says: " << answer;
      return {};
    }
    absl::string_view names = absl::string_view(answer).substr(list + 12);
    names = names.substr(0, names.find(')'));
    return absl::StrSplit(names, ", ");
  }

  // "[daemon]" or "[[tenant]]", as it is written.
  std::string HeadingOf(const std::string& table) {
    const std::string answer = Check(table + " = 1\n");
    const size_t expected = answer.find("(expected [");
    EXPECT_NE(expected, std::string::npos) << answer;
    absl::string_view heading = absl::string_view(answer).substr(expected + 10);
    return std::string(heading.substr(0, heading.find_last_of(']') + 1));
  }

  Keys InPage(const std::string& heading) {
    Keys keys;
    for (const std::string& term : Terms(page_, heading)) {
      keys.merge(AllMatches(term, "^\\.BI? ([a-z_]+) = "));
    }
    return keys;
  }

  const std::string page_ = Page("gpumemd.toml.5");
  std::string dir_;
};

TEST_F(ConfigurationPage, HasTheTablesAndKeysThatTheDaemonKnows) {
  // A table's required keys, so that the unknown key is the first mistake.
  const std::map<std::string, std::string> required = {
      {"tenant", "name = \"x\""}, {"rule", "tenant = \"user-{uid}\"\ndefault = true"}};
  const Keys tables = Known("");
  EXPECT_THAT(tables, Contains("daemon"));
  for (const std::string& table : tables) {
    const std::string heading = HeadingOf(table);
    const auto first = required.find(table);
    Keys known = Known(absl::StrCat(heading, "\n", first == required.end() ? "" : first->second));
    if (table == "tenant_defaults") {
      // The page says: as [[tenant]].
      known.insert("name");
      EXPECT_EQ(known, Known("[[tenant]]\nname = \"x\""));
      EXPECT_THAT(page_, testing::HasSubstr("\n.SH [tenant_defaults]\n"));
      continue;
    }
    if (known.erase("device") != 0) {
      EXPECT_EQ(InPage("[[tenant.device]]"),
                Known("[[tenant]]\nname = \"x\"\n[[tenant.device]]\nuuid = \"x\"\nlimit = 1"));
    }
    EXPECT_EQ(InPage(heading), known) << heading;
  }
  // And no table beside them.
  for (const std::string& heading : AllMatches(page_, "\n\\.SH \\[+([a-z_]+)\\]")) {
    EXPECT_THAT(tables, Contains(heading));
  }
}

TEST_F(ConfigurationPage, ItsExamplesAreRight) {
  absl::string_view examples = absl::string_view(page_).substr(page_.find(".SH EXAMPLES"));
  examples = examples.substr(0, examples.find(".SH SEE ALSO"));
  int checked = 0;
  for (absl::string_view part : absl::StrSplit(examples, ".nf\n.RS 4\n")) {
    const size_t end = part.find(".RE\n");
    if (end == absl::string_view::npos) continue;
    std::string text = absl::StrReplaceAll(part.substr(0, end), {{"\\(dq", "\""}, {"\\-", "-"}});
    // A group that every machine has.
    text = absl::StrReplaceAll(text, {{"group = \"ml\"", "group = \"root\""}});
    EXPECT_THAT(Check(text), testing::HasSubstr(": ok, ")) << text;
    ++checked;
  }
  EXPECT_EQ(checked, 2);
}

}  // namespace
}  // namespace gpumem
