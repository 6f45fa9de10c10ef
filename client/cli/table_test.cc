#include "client/cli/table.h"

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
}

}  // namespace
}  // namespace gpumem::cli
