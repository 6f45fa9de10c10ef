// SPDX-License-Identifier: Apache-2.0
// Suspension, preemption and their order with the memory of jobs of a real Slurm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/slurm/cluster.h"
#include "tests/slurm/slurm_fixture.h"
#include "tests/support/child.h"

namespace gpumem {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;
using testing::kUsers;

class SlurmSuspendTest : public SlurmTest {
 protected:
  bool StartWithTier(testing::Cluster::Options options = {}) {
    options.tier = true;
    if (!Start(options)) return false;
    std::filesystem::copy_file(std::getenv("COPIED_SUSPENDABLE"), cluster_->Program("suspendable"));
    return true;
  }
  uint32_t SubmitSuspendable(const std::string& size, int mib) {
    const uint32_t job =
        cluster_->Submit(kUsers[0], {"-w", "node1", absl::StrCat("--gpumem=", size)},
                         absl::StrCat("exec ", cluster_->Program("suspendable"), " ", mib));
    EXPECT_TRUE(WaitForWord(job, "held"));
    return job;
  }
  bool WaitForWord(uint32_t job, const std::string& word) const {
    return Eventually(
        [&] { return absl::StrContains(cluster_->Output(job), absl::StrCat(word, "\n")); },
        absl::Seconds(60));
  }
  testing::Cluster::Result Helper(const std::string& command, uint32_t job) const {
    return cluster_->OnNode(
        1, {cluster_->Program("gpumem-slurm"), command, absl::StrCat("job=", job)});
  }
  // Bytes on the first device.
  uint64_t OnDevice() const {
    return cluster_->Gpumemctl(1, {"status"})["devices"][0]["charged_bytes"];
  }
};

TEST_F(SlurmSuspendTest, AJobIsSuspendedWithItsMemory) {
  if (!StartWithTier()) return;
  const uint32_t job = SubmitSuspendable("3G", 3072);
  const auto suspended = Helper("suspend", job);
  ASSERT_EQ(suspended.code, 0) << suspended.output;
  EXPECT_THAT(suspended.output, HasSubstr("3.00 GiB moved to the host tier"));
  EXPECT_EQ(cluster_->JobField(job, "JobState"), "SUSPENDED");
  EXPECT_EQ(OnDevice(), 0u);
  // Of another tenant, which could not have it beside the job's guarantee.
  EXPECT_EQ(
      cluster_
          ->OnNode(1, {cluster_->Program("gpumemctl"), "hold", "--for", "1ms", "--size", "2GiB"})
          .code,
      0);
  const auto again = Helper("suspend", job);
  EXPECT_EQ(again.code, 1) << "it does not run";
  const auto resumed = Helper("resume", job);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_TRUE(WaitForWord(job, "resumed")) << cluster_->Output(job);
  EXPECT_EQ(cluster_->JobField(job, "JobState"), "RUNNING");
  EXPECT_EQ(OnDevice(), uint64_t{3} << 30);
  const auto quota = cluster_->Gpumemctl(1, {"quota", "get", absl::StrCat("job-", job)});
  EXPECT_EQ(quota["quota"]["guarantees"][0]["guarantee_bytes"], uint64_t{3} << 30);
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

TEST_F(SlurmSuspendTest, AJobWithoutAGuaranteeIsResumedToo) {
  if (!StartWithTier()) return;
  const uint32_t job = SubmitSuspendable("1G,guarantee=0", 1024);
  const auto suspended = Helper("suspend", job);
  ASSERT_EQ(suspended.code, 0) << suspended.output;
  const auto resumed = Helper("resume", job);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_TRUE(WaitForWord(job, "resumed")) << cluster_->Output(job);
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

// What its suspension has set ends with it: a requeued job has the same name.
TEST_F(SlurmSuspendTest, AJobMayEndWhileItIsSuspended) {
  if (!StartWithTier()) return;
  const uint32_t job = SubmitSuspendable("1G", 1024);
  ASSERT_EQ(Helper("suspend", job).code, 0);
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
  const std::string tenant = absl::StrCat("job-", job);
  cluster_->Gpumemctl(1, {"tenant", "create", tenant, "--guarantee", "1GiB"});
  const auto quota = cluster_->Gpumemctl(1, {"quota", "get", tenant});
  EXPECT_TRUE(quota["overridden"].empty()) << quota.dump();
  cluster_->Gpumemctl(1, {"tenant", "end", tenant});
}

TEST_F(SlurmSuspendTest, AJobThatCannotGiveItsMemoryIsLeftAlone) {
  if (!StartWithTier()) return;
  const uint32_t job = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=1G"}, Hold(1024));
  ASSERT_TRUE(WaitForCharge(1, 1024)) << cluster_->Output(job);
  const auto refused = Helper("suspend", job);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.output, HasSubstr("gpumemctl: the program does not serve suspensions"));
  EXPECT_EQ(cluster_->JobField(job, "JobState"), "RUNNING");
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

// scontrol alone: the memory stays in place.
TEST_F(SlurmSuspendTest, SlurmsOwnSuspensionLeavesTheMemory) {
  if (!StartWithTier()) return;
  const uint32_t job = SubmitSuspendable("1G", 1024);
  EXPECT_EQ(cluster_->AsRoot({"scontrol", "suspend", absl::StrCat(job)}).code, 0);
  EXPECT_EQ(OnDevice(), uint64_t{1} << 30);
  const auto refused = Helper("suspend", job);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.output, HasSubstr("does not run"));
  EXPECT_EQ(cluster_->AsRoot({"scontrol", "resume", absl::StrCat(job)}).code, 0);
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

TEST_F(SlurmSuspendTest, APreemptedJobGivesItsMemoryToTheOther) {
  if (!StartWithTier({.preemption = true})) return;
  const uint32_t low = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=3G"}, Hold(3072));
  ASSERT_TRUE(WaitForCharge(1, 3072)) << cluster_->Output(low);
  const uint32_t high =
      cluster_->Submit(kUsers[1], {"-w", "node1", "-p", "urgent", "--gpumem=4G"}, Hold(4096));
  ASSERT_TRUE(WaitForCharge(1, 4096)) << cluster_->Output(high);
  EXPECT_EQ(cluster_->JobField(high, "JobState"), "RUNNING");
  EXPECT_EQ(cluster_->JobField(low, "JobState"), "PENDING");
  EXPECT_EQ(cluster_->JobField(low, "Restarts"), "1");
  cluster_->AsRoot({"scancel", absl::StrCat(low), absl::StrCat(high)});
  ExpectNothingLeft();
}

}  // namespace
}  // namespace gpumem
