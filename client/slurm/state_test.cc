// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gpumem::slurm {
namespace {

TEST(StateTest, NamesOfTenantsAreThoseOfJobs) {
  EXPECT_EQ(TenantOf(17), "job-17");
  EXPECT_EQ(JobOf("job-17"), 17u);
  for (const char* other : {"", "job-", "job-0", "job-x", "job-17x", "job--17", "user-17",
                            "job-4294967296", "job-17/child"}) {
    EXPECT_EQ(JobOf(other), std::nullopt) << other;
  }
}

TEST(StateTest, GpusAreOneLine) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/gpus");
  ASSERT_TRUE(WriteGpus(folder, 17, "GPU-a,GPU-b").ok());
  std::string line;
  std::getline(std::ifstream(GpusFile(folder, 17)), line);
  EXPECT_EQ(line, "GPU-a,GPU-b");
  EXPECT_FALSE(WriteGpus("/proc/none", 17, "GPU-a").ok());
}

// Another user could have a job see GPUs of its choice, or root write to a file of its choice.
TEST(StateTest, AFolderThatOthersCanChangeIsRefused) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/open");
  const auto code = [](const std::string& path) { return WriteGpus(path, 17, "GPU-a").code(); };
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  EXPECT_EQ(code(folder), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(JobLock::Take(folder, 17, absl::Now()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  EXPECT_EQ(code(folder), absl::StatusCode::kOk);
  const std::string link = absl::StrCat(::testing::TempDir(), "/link");
  ASSERT_EQ(symlink(folder.c_str(), link.c_str()), 0);
  EXPECT_EQ(code(link), absl::StatusCode::kFailedPrecondition);
}

TEST(StateTest, OneProgramWorksOnAJob) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/locks");
  {
    const auto lock = JobLock::Take(folder, 17, absl::Now());
    ASSERT_TRUE(lock.ok()) << lock.status();
    EXPECT_EQ(JobLock::Take(folder, 17, absl::Now()).status().code(),
              absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(JobLock::Take(folder, 18, absl::Now()).ok()) << "of another job";
    // The highest number.
    EXPECT_TRUE(JobLock::Take(folder, 0xffffffff, absl::Now()).ok());
  }
  EXPECT_TRUE(JobLock::Take(folder, 17, absl::Now()).ok()) << "it ends with its holder";
}

}  // namespace
}  // namespace gpumem::slurm
