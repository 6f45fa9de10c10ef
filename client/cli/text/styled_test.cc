// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/styled.h"

#include <gtest/gtest.h>

namespace gpumem::cli {
namespace {

TEST(LineTest, IsTheSameWithAndWithoutColours) {
  Line line("one ");
  line.Add("größer", Style::kWarning).Add(" end");
  EXPECT_EQ(line.width(), 14u);
  EXPECT_EQ(line.ToString(false, 80), "one größer end");
  EXPECT_EQ(line.ToString(true, 80), "one \x1b[33mgrößer\x1b[0m end");
  // A truncated colour ends with the rest of its text.
  EXPECT_EQ(line.ToString(true, 8), "one \x1b[33mgröß\x1b[0m");
  EXPECT_EQ(line.ToString(true, 4), "one ");
  EXPECT_EQ(line.ToString(false, 0), "");
  EXPECT_EQ(Line("a\x1b[31mb\n").ToString(true, 80), "a?[31mb?");
}

TEST(LineTest, SeveralLines) {
  EXPECT_EQ(ToString({Line("one"), Line(), Line("three")}, true, 3), "one\n\nthr\n");
}

TEST(MeterTest, ShowsAShareByLengthAndByNumber) {
  EXPECT_EQ(MeterOf(0, 100, 12).ToString(false, 80), "[        0%]");
  EXPECT_EQ(MeterOf(50, 100, 12).ToString(false, 80), "[|||||  50%]");
  EXPECT_EQ(MeterOf(100, 100, 12).ToString(false, 80), "[||||||100%]");
  EXPECT_EQ(MeterOf(300, 100, 12).ToString(false, 80), "[||||||300%]");
  EXPECT_EQ(MeterOf(5, 0, 12).ToString(false, 80), "[         -]");
  EXPECT_EQ(MeterOf(50, 100, 3).ToString(false, 80), "50%");
  EXPECT_EQ(MeterOf(50, 100, 12).ToString(true, 80), "[\x1b[32m|||||\x1b[0m  50%]");
  EXPECT_NE(MeterOf(80, 100, 12).ToString(true, 80).find("\x1b[33m"), std::string::npos);
  EXPECT_NE(MeterOf(95, 100, 12).ToString(true, 80).find("\x1b[1;31m"), std::string::npos);
}

TEST(StyleTest, ThereIsOneForEachOfMany) {
  EXPECT_EQ(OneOf(0), Style::kFirst);
  EXPECT_EQ(OneOf(6), OneOf(0));
  EXPECT_NE(OneOf(1), OneOf(0));
  EXPECT_EQ(GroundOf(7), Style::kSecondGround);
}

}  // namespace
}  // namespace gpumem::cli
