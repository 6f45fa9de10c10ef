// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/bytes.h"

namespace gpumem::cli {
namespace {

TEST(ProgressTest, SaysHowFarHowFastAndHowLong) {
  EXPECT_EQ(
      ProgressLine("llama", 4 * kGiB, 10 * kGiB, absl::Seconds(2), 120),
      "llama  [############..................]   40%  4.00 GiB of 10.00 GiB  2.00 GiB/s  3s left");
}

TEST(ProgressTest, FitsItsColumns) {
  for (size_t columns = 1; columns <= 130; ++columns) {
    const std::string line =
        ProgressLine("a-model-of-some-length", 4 * kGiB, 10 * kGiB, absl::Seconds(2), columns);
    EXPECT_LE(line.size(), columns);
    EXPECT_THAT(line,
                testing::StartsWith(std::string("a-model-of-some-length").substr(0, columns)));
  }
  EXPECT_EQ(ProgressLine("llama", 4 * kGiB, 10 * kGiB, absl::Seconds(2), 40),
            "llama  [##########...............]   40%");
}

TEST(ProgressTest, HasABeginningAndAnEnd) {
  EXPECT_EQ(ProgressLine("m", 0, kGiB, absl::ZeroDuration(), 80),
            "m  [..............................]    0%  0 B of 1.00 GiB  0 B/s");
  EXPECT_EQ(
      ProgressLine("m", kGiB, kGiB, absl::Seconds(1), 100),
      "m  [##############################]  100%  1.00 GiB of 1.00 GiB  1.00 GiB/s  0ms left");
}

TEST(ProgressTest, ShowsNothingThatATerminalWouldActOn) {
  EXPECT_THAT(ProgressLine("a\x1b[2J", 0, 1, absl::Seconds(1), 80),
              testing::StartsWith("a?[2J  ["));
}

}  // namespace
}  // namespace gpumem::cli
