// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/fd_store/fd_name.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>

namespace gpumemd {
namespace fd_name_test {

TEST(FdNameTest, ComesBackAsItWent) {
  for (const uint64_t number : {uint64_t{0}, uint64_t{1}, uint64_t{61}, uint64_t{62},
                                uint64_t{999'999'999}, UINT64_MAX - 1, UINT64_MAX}) {
    const std::string text = ToString({.kind = 's', .number = number});
    const std::optional<FdName> name = ParseFdName(text);
    ASSERT_TRUE(name.has_value()) << text;
    EXPECT_EQ(name->kind, 's');
    EXPECT_EQ(name->number, number);
  }
}

TEST(FdNameTest, IsShort) {
  EXPECT_EQ(ToString({.kind = 'j', .number = 0}), "j0");
  EXPECT_EQ(ToString({.kind = 's', .number = 61}), "sz");
  EXPECT_EQ(ToString({.kind = 's', .number = 62}), "s10");
  EXPECT_EQ(ToString({.kind = 'm', .number = 62 * 62 * 62 - 1}), "mzzz");
  EXPECT_EQ(ToString({.kind = 's', .number = 900'000'000}).size(), 6);
  EXPECT_EQ(ToString({.kind = 's', .number = UINT64_MAX}).size(), 12);
}

TEST(FdNameTest, ReadsNothingElse) {
  for (const char* text : {"", "s", "7", "71", "s-1", "s ", "s1 ", "s:", "s00", "s01", "é1",
                           "stored", "unknown!", "szzzzzzzzzzz", "s1000000000000"}) {
    const std::optional<FdName> name = ParseFdName(text);
    // "stored" happens to be one; it is the names' owner who knows its kinds and numbers.
    EXPECT_EQ(name.has_value(), std::string(text) == "stored") << text;
  }
  // The largest number, and one more.
  EXPECT_TRUE(ParseFdName("sLygHa16AHYF").has_value());
  EXPECT_FALSE(ParseFdName("sLygHa16AHYG").has_value());
}

}  // namespace fd_name_test
}  // namespace gpumemd
