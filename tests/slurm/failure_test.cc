// SPDX-License-Identifier: Apache-2.0
// Daemons that die or stay away, and memory that does not come back, around jobs of a real Slurm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/slurm/cluster.h"
#include "tests/slurm/slurm_fixture.h"
#include "tests/support/child.h"
#include "tests/support/expect_status.h"

namespace gpumem {
namespace {

using ::testing::ElementsAre;
using testing::Eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kUsers;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

using SlurmFailureTest = SlurmTest;

TEST_F(SlurmFailureTest, SlurmdMayDieDuringAJob) {
  if (!Start()) return;
  const uint32_t job = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=2G"}, Hold(2048));
  ASSERT_TRUE(WaitForCharge(1, 2048)) << cluster_->Output(job);
  ASSERT_OK(cluster_->Crash(1, "slurmd"));
  EXPECT_EQ(cluster_->Charged(1), uint64_t{2048} << 20);
  EXPECT_THAT(cluster_->Tenants(1), ElementsAre(absl::StrCat("job-", job)));
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

TEST_F(SlurmFailureTest, GpumemdMayDieDuringAJob) {
  if (!Start()) return;
  const uint32_t job = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=2G"}, Hold(2048));
  ASSERT_TRUE(WaitForCharge(1, 2048)) << cluster_->Output(job);
  ASSERT_OK(cluster_->Crash(1, "gpumemd"));
  EXPECT_EQ(cluster_->Charged(1), uint64_t{2048} << 20);
  EXPECT_THAT(cluster_->Tenants(1), ElementsAre(absl::StrCat("job-", job)));
  // A step that begins now is the same tenant, with the same limit.
  const auto step =
      cluster_->AsUser(kUsers[0], {"srun", "--quiet", "--overlap", absl::StrCat("--jobid=", job),
                                   cluster_->Program("gpumemctl"), "quota"});
  EXPECT_THAT(step.output, HasSubstr(absl::StrCat("TENANT job-", job)));
  EXPECT_THAT(step.output, HasSubstr("2.00 GiB"));
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

TEST_F(SlurmFailureTest, APrologWaitsForADaemonThatRestarts) {
  if (!Start()) return;
  cluster_->Stop(1, "gpumemd");
  const uint32_t job = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=2G"}, Hold(2048));
  ASSERT_TRUE(cluster_->WaitForState(job, "RUNNING"));
  ASSERT_OK(cluster_->Run(1, "gpumemd"));
  ASSERT_TRUE(WaitForCharge(1, 2048)) << cluster_->Output(job);
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

TEST_F(SlurmFailureTest, WithoutADaemonTheNodeIsDrainedAndTheJobKept) {
  if (!Start({.plugin_args = "patience=0s"})) return;
  cluster_->Stop(1, "gpumemd");
  const uint32_t job = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=2G"}, Hold(2048));
  ASSERT_TRUE(Eventually([&] {
    return absl::StrContains(cluster_->NodeField(1, "State"), "DRAIN") &&
           cluster_->JobField(job, "JobState") == "PENDING";
  })) << cluster_->NodeField(1, "State")
      << cluster_->JobField(job, "JobState");
  EXPECT_EQ(cluster_->NodeField(2, "State"), "IDLE");
  EXPECT_THAT(cluster_->JobField(job, "Reason"), HasSubstr("held"));
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
}

TEST_F(SlurmFailureTest, MemoryThatDoesNotComeBackDrainsTheNode) {
  if (!Start({.plugin_args = "patience=1s"})) return;
  // Of root, who can leave the job's control group: Slurm does not know it any more.
  const uint32_t job = cluster_->Submit(
      0, {"-w", "node1", "--gpumem=2G"},
      absl::StrCat(Hold(1024), " & pid=$!; until ", cluster_->Program("gpumemctl"),
                   " quota | grep -q '1.00 GiB'; do :; done; ",
                   "echo $pid >/sys/fs/cgroup/freezer/cgroup.procs; echo left $pid"));
  ASSERT_NE(job, 0u);
  ASSERT_TRUE(Eventually([&] {
    return absl::StrContains(cluster_->NodeField(1, "State"), "DRAIN");
  })) << cluster_->Output(job);
  const std::string node = cluster_->AsRoot({"scontrol", "show", "node", "node1"}).output;
  EXPECT_THAT(node, HasSubstr(absl::StrCat("Reason=gpumem: job-", job, ": 1.00 GiB on HOST-")));
  const std::string output = cluster_->Output(job);
  const size_t left = output.find("left ");
  ASSERT_NE(left, std::string::npos) << output;
  const std::string pid = output.substr(left + 5, output.find('\n', left) - left - 5);
  EXPECT_THAT(node, HasSubstr(absl::StrCat("held by pid ", pid, " gpumemctl"))) << node;
  EXPECT_EQ(cluster_->OnNode(1, {"/bin/kill", "-KILL", pid}).code, 0);
  ASSERT_TRUE(WaitForCharge(1, 0));
  ASSERT_TRUE(Eventually([&] { return cluster_->Tenants(1).empty(); }));
  cluster_->AsRoot({"scontrol", "update", "NodeName=node1", "State=RESUME"});
  ExpectNothingLeft();
}

// A tenant such as a prolog makes, of a job that Slurm does not know.
TEST_F(SlurmFailureTest, RoomOfAJobThatIsGoneIsTakenBack) {
  if (!Start()) return;
  // Not the sweep that slurmd has begun.
  ASSERT_EQ(cluster_->OnNode(1, {"/usr/bin/pkill", "-KILL", "-f", "[g]pumem-slurm sweep"}).code, 0);
  EXPECT_FALSE(cluster_
                   ->Gpumemctl(1, {"tenant", "create", "job-99", "--owner", "slurm", "--limit",
                                   "3GiB", "--guarantee", "3GiB"})
                   .is_null());
  EXPECT_FALSE(cluster_->Gpumemctl(1, {"tenant", "create", "job-98"}).is_null());
  const uint32_t small = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=1G"}, Hold(1024));
  ASSERT_TRUE(WaitForCharge(1, 1024)) << cluster_->Output(small);
  EXPECT_THAT(cluster_->Tenants(1),
              UnorderedElementsAre(absl::StrCat("job-", small), "job-98", "job-99"))
      << "there was room beside it";
  const uint32_t large = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=3G"}, Hold(3072));
  ASSERT_TRUE(WaitForCharge(1, 4096)) << cluster_->Output(large);
  EXPECT_THAT(cluster_->Tenants(1), UnorderedElementsAre(absl::StrCat("job-", small),
                                                         absl::StrCat("job-", large), "job-98"))
      << "an operator's is not touched";
  cluster_->Gpumemctl(1, {"tenant", "end", "job-98"});
  cluster_->AsRoot({"scancel", absl::StrCat(small), absl::StrCat(large)});
  ExpectNothingLeft();
}

// Such as one of before a reboot, of a job that has become larger since.
TEST_F(SlurmFailureTest, ATenantOfAnotherSizeIsMadeAnew) {
  if (!Start()) return;
  ASSERT_EQ(cluster_->OnNode(1, {"/usr/bin/pkill", "-KILL", "-f", "[g]pumem-slurm sweep"}).code, 0);
  cluster_->Gpumemctl(1, {"tenant", "create", "job-1", "--owner", "slurm", "--limit", "1GiB"});
  ASSERT_EQ(cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=2G"}, Hold(2048)), 1u);
  EXPECT_TRUE(WaitForCharge(1, 2048)) << cluster_->Output(1);
  cluster_->AsRoot({"scancel", "1"});
  ExpectNothingLeft();
}

TEST_F(SlurmFailureTest, AnOperatorsTenantIsNotTheJobs) {
  if (!Start()) return;
  cluster_->Gpumemctl(1, {"tenant", "create", "job-1"});
  ASSERT_EQ(cluster_->Submit(kUsers[0], {"-w", "node1"}, "true"), 1u);
  ASSERT_TRUE(cluster_->WaitForQuiet());
  EXPECT_EQ(cluster_->JobField(1, "JobState"), "COMPLETED");
  EXPECT_THAT(cluster_->Tenants(1), ElementsAre("job-1"));
  cluster_->Gpumemctl(1, {"tenant", "end", "job-1"});
  ExpectNothingLeft();
}

// Of a job that has asked for memory: the node is drained. Others do not wait for gpumemd.
TEST_F(SlurmFailureTest, AnEpilogWithoutADaemonDrainsForMemoryAlone) {
  if (!Start({.plugin_args = "patience=1s"})) return;
  const uint32_t holds = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=2G"}, Hold(2048));
  ASSERT_TRUE(WaitForCharge(1, 2048)) << cluster_->Output(holds);
  const uint32_t other = cluster_->Submit(kUsers[0], {"-w", "node1"}, "sleep 600");
  ASSERT_TRUE(cluster_->WaitForState(other, "RUNNING"));
  cluster_->Stop(1, "gpumemd");
  cluster_->AsRoot({"scancel", absl::StrCat(other)});
  ASSERT_TRUE(Eventually([&] { return cluster_->JobField(other, "EndTime") != "Unknown"; }));
  ASSERT_TRUE(cluster_->WaitForState(other, "CANCELLED"));
  EXPECT_THAT(cluster_->NodeField(1, "State"), Not(HasSubstr("DRAIN")));
  cluster_->AsRoot({"scancel", absl::StrCat(holds)});
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(cluster_->NodeField(1, "State"), "DRAIN");
  })) << cluster_->Logs();
}

// Its prolog goes on without it, and makes the tenant of a job that has no slurmd.
TEST_F(SlurmFailureTest, SlurmdMayDieInAProlog) {
  if (!Start()) return;
  cluster_->Stop(1, "gpumemd");
  const uint32_t job = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=2G"}, "true");
  const std::vector<std::string> find = {"/usr/bin/pgrep", "-f", "[g]pumem-slurm prolog job="};
  ASSERT_TRUE(Eventually([&] { return cluster_->OnNode(1, find).code == 0; }));
  cluster_->Stop(1, "slurmd");
  EXPECT_EQ(cluster_->OnNode(1, find).code, 0);
  ASSERT_OK(cluster_->Run(1, "gpumemd"));
  ASSERT_TRUE(WaitForTenants(1, {absl::StrCat("job-", job)}));
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ASSERT_OK(cluster_->Run(1, "slurmd"));
  EXPECT_TRUE(WaitForTenants(1, {}));
  ExpectNothingLeft();
}

// slurmctld takes the job away while there is no slurmd to run an epilog.
TEST_F(SlurmFailureTest, AStartingSlurmdEndsTenantsWithoutAJob) {
  if (!Start()) return;
  cluster_->Stop(1, "slurmd");
  cluster_->Gpumemctl(1, {"tenant", "create", "job-99", "--owner", "slurm"});
  EXPECT_TRUE(WaitForTenants(1, {"job-99"}));
  ASSERT_OK(cluster_->Run(1, "slurmd"));
  EXPECT_TRUE(WaitForTenants(1, {}));
  ExpectNothingLeft();
}

}  // namespace
}  // namespace gpumem
