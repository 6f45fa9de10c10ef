// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/spank/option.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumem::slurm {
namespace {

using ::testing::HasSubstr;

Option Parsed(const std::string& text) {
  Option option;
  EXPECT_EQ(ParseOption(text, &option), "") << text;
  return option;
}

std::string Wrong(const std::string& text) {
  Option option;
  return ParseOption(text, &option);
}

TEST(SlurmOptionTest, SizesAreMebibytes) {
  EXPECT_EQ(Parsed("4096").mib, 4096u);
  EXPECT_EQ(Parsed("1m").mib, 1u);
  EXPECT_EQ(Parsed("40G").mib, 40960u);
  EXPECT_EQ(Parsed("40GiB").mib, 40960u);
  EXPECT_EQ(Parsed("2t").mib, 2u << 20);
  EXPECT_EQ(Parsed("1025K").mib, 2u) << "rounded up";
}

TEST(SlurmOptionTest, KeysFollowTheSize) {
  const Option plain = Parsed("40G");
  EXPECT_FALSE(plain.guarantee_mib || plain.wait_ms);
  EXPECT_EQ(plain.priority, 0);
  const Option all = Parsed("40G,guarantee=10G,priority=-5,wait=90s");
  EXPECT_EQ(all.guarantee_mib, 10240u);
  EXPECT_EQ(all.priority, -5);
  EXPECT_EQ(all.wait_ms, 90'000u);
  EXPECT_EQ(Parsed("1G,guarantee=0").guarantee_mib, 0u);
  EXPECT_EQ(Parsed("1G,wait=250ms").wait_ms, 250u);
  EXPECT_EQ(Parsed("1G,wait=7").wait_ms, 7000u);
}

TEST(SlurmOptionTest, MistakesAreNamed) {
  for (const char* size : {"", "G", "0", "-1", "1.5G", "40GB", "40x", "1G ", "99999999999999999999",
                           "1099511627777", "16777217T"}) {
    EXPECT_THAT(Wrong(size), HasSubstr("is no size")) << size;
  }
  EXPECT_THAT(Wrong("1G,guarantee=2x"), HasSubstr("guarantee: \"2x\""));
  EXPECT_THAT(Wrong("1G,guarantee=2G"), HasSubstr("above the size"));
  EXPECT_THAT(Wrong("1G,priority=1001"), HasSubstr("priority: \"1001\""));
  EXPECT_THAT(Wrong("1G,priority="), HasSubstr("priority: \"\""));
  EXPECT_THAT(Wrong("1G,wait=1d"), HasSubstr("wait: \"1d\""));
  EXPECT_THAT(Wrong("1G,wait=169h"), HasSubstr("a week"));
  EXPECT_THAT(Wrong("1G,size=1"), HasSubstr("unknown key \"size\""));
  EXPECT_THAT(Wrong("1G,,wait=1s"), HasSubstr("unknown key \"\""));
}

}  // namespace
}  // namespace gpumem::slurm
