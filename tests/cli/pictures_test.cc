// SPDX-License-Identifier: Apache-2.0
// The pictures of docs/cli.md can be made: all of them, by the script beside this.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/demo/process.h"

namespace gpumem {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The sockets that a picture names.
std::set<std::string> Sockets(const std::filesystem::path& picture) {
  const std::string svg = ReadFile(picture);
  const std::regex socket("[a-z]+\\.sock");
  std::set<std::string> names;
  for (std::sregex_iterator it(svg.begin(), svg.end(), socket), end; it != end; ++it) {
    names.insert(it->str());
  }
  return names;
}

TEST(PicturesTest, AreMadeFromTheRealProgram) {
  char folder[] = "/tmp/gpumem-pictures-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string text = ReadFile("docs/cli.md");
  std::set<std::string> wanted;
  const std::regex picture("pictures/([a-z-]+\\.svg)");
  for (std::sregex_iterator it(text.begin(), text.end(), picture), end; it != end; ++it) {
    wanted.insert((*it)[1]);
  }
  EXPECT_GE(wanted.size(), 8u);

  demo::Process script({.argv = {"/usr/bin/python3", "tests/cli/pictures.py", "daemon/gpumemd",
                                 "client/cli/gpumemctl", folder},
                        .stderr_too = true});
  const absl::Time deadline = absl::Now() + absl::Minutes(4);
  std::string output;
  while (auto line = script.ReadLine(deadline)) absl::StrAppend(&output, *line, "\n");
  EXPECT_EQ(script.Wait(deadline), 0) << output;

  std::set<std::string> made;
  for (const auto& each : std::filesystem::directory_iterator(folder)) {
    made.insert(each.path().filename());
    const std::string svg = ReadFile(each.path());
    EXPECT_THAT(svg, StartsWith("<svg ")) << each.path();
    EXPECT_THAT(svg, EndsWith("</svg>\n")) << each.path();
    EXPECT_THAT(svg, HasSubstr(">gpumemctl ")) << each.path();
    // A command that failed, or a daemon that was not there.
    EXPECT_THAT(svg, Not(HasSubstr("gpumemctl: "))) << each.path();
  }
  EXPECT_EQ(made, wanted);
  EXPECT_THAT(ReadFile(std::filesystem::path(folder) / "top.svg"), HasSubstr(">serving"));
  // The picture in docs/ is not of a program that had others.
  const std::set<std::string> sockets = Sockets(std::filesystem::path(folder) / "doctor.svg");
  EXPECT_THAT(sockets, ::testing::Contains("session.sock"));
  EXPECT_EQ(Sockets("docs/pictures/doctor.svg"), sockets);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gpumem
