// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/mps_limit.h"

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gpumem::cli {
namespace {

TEST(MpsLimitTest, IsForEachDeviceInWholeMebibytes) {
  EXPECT_EQ(MpsLimit(uint64_t{20} << 30, 1), "0=20480M");
  EXPECT_EQ(MpsLimit(uint64_t{20} << 30, 3), "0=20480M,1=20480M,2=20480M");
  EXPECT_EQ(MpsLimit(1, 1), "0=1M");
  EXPECT_EQ(MpsLimit((uint64_t{5} << 20) + 1, 1), "0=6M");
  EXPECT_EQ(MpsLimit(UINT64_MAX, 1), "0=17592186044416M");
  EXPECT_EQ(MpsLimit(1, 0), "");
}

TEST(MpsLimitTest, MpsRunsWhereItsPipeIs) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/mps");
  const std::string pipe = absl::StrCat(folder, "/control");
  unlink(pipe.c_str());
  rmdir(folder.c_str());
  EXPECT_FALSE(MpsRuns(folder));
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  EXPECT_FALSE(MpsRuns(folder));
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(MpsRuns(folder));
  unlink(pipe.c_str());
  rmdir(folder.c_str());
}

}  // namespace
}  // namespace gpumem::cli
