// SPDX-License-Identifier: Apache-2.0
// The records of jobs in Slurm's database.
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "tests/slurm/slurm_fixture.h"

namespace gpumem {
namespace {

using testing::kUsers;

class SlurmDatabaseTest : public SlurmTest {};

TEST_F(SlurmDatabaseTest, WhatAJobHasUsedIsInItsRecord) {
  if (!Start({.plugin_args = "account=yes", .database = true})) return;
  const uint32_t job = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=2G"},
                                        absl::StrCat(Hold(1024), " --for 1s"));
  ASSERT_TRUE(cluster_->WaitForState(job, "COMPLETED")) << cluster_->Output(job);
  ExpectNothingLeft();
  // slurmctld sends parts of the record one after the other.
  std::string record;
  EXPECT_TRUE(testing::Eventually(
      [&] {
        const char* const fields = "State,ReqTRES,AdminComment";
        record = cluster_->AsRoot({"sacct", "-XnP", "-j", absl::StrCat(job), "-o", fields}).output;
        return absl::StrContains(record, "gpumem_byte_seconds_node1=") &&
               absl::StrContains(record, "gres/gpumem=2048");
      },
      absl::Seconds(60)))
      << record;
  EXPECT_THAT(record, ::testing::HasSubstr("COMPLETED|"));
  EXPECT_THAT(record, ::testing::ContainsRegex(absl::StrCat("gpumem_peak_node1=[^ :]+:", 1 << 30)));
}

}  // namespace
}  // namespace gpumem
