// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/table.h"

#include <gtest/gtest.h>

namespace gpumem::cli {
namespace {

TEST(TableTest, AlignsColumns) {
  Table table({{"NAME"}, {"SIZE", Align::kRight}, {"STATE"}});
  EXPECT_TRUE(table.empty());
  table.AddRow({"a", "1.50 GiB", "leased"});
  table.AddRow({"longer name", "0 B", ""});
  EXPECT_FALSE(table.empty());
  EXPECT_EQ(table.ToString(),
            "NAME             SIZE  STATE\n"
            "a            1.50 GiB  leased\n"
            "longer name       0 B\n");
}

TEST(TableTest, HeaderAloneWithoutRows) { EXPECT_EQ(Table({{"A"}, {"B"}}).ToString(), "A  B\n"); }

TEST(TableTest, CountsCharactersAndNotBytes) {
  Table table({{"NAME"}, {"N", Align::kRight}});
  table.AddRow({"größe", "1"});
  table.AddRow({"plain", "22"});
  EXPECT_EQ(table.ToString(),
            "NAME    N\n"
            "größe   1\n"
            "plain  22\n");
}

TEST(TableTest, NamesOfOthersCannotDriveTheTerminal) {
  Table table({{"NAME"}});
  table.AddRow({"evil\x1b[2J\n\x7f"});
  EXPECT_EQ(table.ToString(), "NAME\nevil?[2J??\n");
  EXPECT_EQ(Table({{"TENANT \x1b[2J"}}).ToString(), "TENANT ?[2J\n");
}

TEST(TableTest, CutsWhatMayBeCutAndLeavesOutWhatMayBeLeftOut) {
  Table table({{"N", Align::kRight},
               {"NAME", Align::kLeft, 4},
               {"WHAT", Align::kLeft, 6},
               {"MORE", Align::kLeft, 0, 1},
               {"MOST", Align::kLeft, 0, 2}});
  table.AddRow({"1", "a long name", "größer", "more", "most"});
  table.AddRow({"22", "b", "", "", ""});
  EXPECT_EQ(table.ToString(37),
            " N  NAME         WHAT    MORE  MOST\n"
            " 1  a long name  größer  more  most\n"
            "22  b\n");
  EXPECT_EQ(table.ToString(31),
            " N  NAME     WHAT    MORE  MOST\n"
            " 1  a long~  größer  more  most\n"
            "22  b\n");
  EXPECT_EQ(table.ToString(27),  // the whole name fits again
            " N  NAME       WHAT    MORE\n"
            " 1  a long n~  größer  more\n"
            "22  b\n");
  EXPECT_EQ(table.ToString(16),
            " N  NAME  WHAT\n"
            " 1  a l~  größer\n"
            "22  b\n");
  EXPECT_EQ(table.ToString(3), table.ToString(16));  // the minimum width
}

TEST(TableTest, LinesAreBrokenAtBlanks) {
  EXPECT_EQ(Wrapped("größer als das", 10), (std::vector<std::string>{"größer als", "das"}));
  EXPECT_EQ(Wrapped("incomprehensible a", 5), (std::vector<std::string>{"incomprehensible", "a"}));
  EXPECT_EQ(Wrapped("", 5), std::vector<std::string>{""});
}

TEST(TableTest, ShortenedCountsCharacters) {
  EXPECT_EQ(Shortened("größer", 6), "größer");
  EXPECT_EQ(Shortened("größer", 5), "größ~");
  EXPECT_EQ(Shortened("größer", 1), "~");
  EXPECT_EQ(Shortened("größer", 0), "");
  EXPECT_EQ(WidthOf("größer"), 6u);
}

TEST(TableTest, DetailsAreShownWhereTheLayoutHasThem) {
  Table table({{"NAME"}, Detail("N", Align::kRight), {"SIZE", Align::kRight}, Detail("UUID")});
  table.AddRow({"a", "1", "2", "GPU-\x1b"});
  EXPECT_EQ(table.ToString(), "NAME  SIZE\na        2\n");
  EXPECT_EQ(table.ToString({kAnyWidth, true, /*with_details=*/true}),
            "NAME  N  SIZE  UUID\na     1     2  GPU-?\n");
}

TEST(TableTest, HeadersCanBeLeftOut) {
  Table table({{"NAME"}, {"N", Align::kRight}});
  table.AddRow({"a", "1000"});
  EXPECT_EQ(table.ToString({kAnyWidth, /*with_headers=*/false}), "a     1000\n");
}

}  // namespace
}  // namespace gpumem::cli
