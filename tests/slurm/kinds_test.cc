// SPDX-License-Identifier: Apache-2.0
// Jobs of each kind of a real Slurm, and each of its ways to keep their processes together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/slurm/cluster.h"
#include "tests/slurm/slurm_fixture.h"
#include "tests/support/child.h"
#include "tests/support/expect_status.h"

namespace gpumem {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kUsers;

using SlurmKindsTest = SlurmTest;

TEST_F(SlurmKindsTest, EachTaskOfAnArrayIsATenant) {
  if (!Start()) return;
  const uint32_t array =
      cluster_->Submit(kUsers[0], {"--array=0-3", "--gpumem=2G"},
                       absl::StrCat(cluster_->Program("gpumemctl"),
                                    " -o json whoami >$SLURM_JOB_ID.who; ", Hold(2048)));
  ASSERT_NE(array, 0u);
  ASSERT_TRUE(WaitForCharge(1, 4096) && WaitForCharge(2, 4096));
  std::vector<std::string> tenants = cluster_->Tenants(1);
  for (const std::string& other : cluster_->Tenants(2)) tenants.push_back(other);
  EXPECT_EQ(tenants.size(), 4u);
  for (std::string tenant : tenants) {
    std::ifstream who(absl::StrCat(cluster_->shared(), "/", tenant.substr(strlen("job-")), ".who"));
    EXPECT_EQ(json::parse(who)["tenant"], tenant);
  }
  cluster_->AsRoot({"scancel", absl::StrCat(array)});
  ExpectNothingLeft();
}

TEST_F(SlurmKindsTest, PartsOfAHeterogeneousJobHaveTheirOwn) {
  if (!Start()) return;
  const auto both =
      cluster_->AsUser(kUsers[0], {"srun", "--quiet", "-w", "node1", "--gpumem=1G",
                                   cluster_->Program("gpumemctl"), "quota", ":", "-w", "node2",
                                   "--gpumem=2G", cluster_->Program("gpumemctl"), "quota"});
  EXPECT_EQ(both.code, 0) << both.output;
  EXPECT_THAT(both.output, HasSubstr("TENANT job-1 "));
  EXPECT_THAT(both.output, HasSubstr("TENANT job-2 "));
  EXPECT_THAT(both.output, HasSubstr("1.00 GiB"));
  EXPECT_THAT(both.output, HasSubstr("2.00 GiB"));
  ExpectNothingLeft();
}

TEST_F(SlurmKindsTest, ARequeuedJobHasItsMemoryAgain) {
  if (!Start()) return;
  const uint32_t job = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=2G"}, Hold(2048));
  ASSERT_TRUE(WaitForCharge(1, 2048)) << cluster_->Output(job);
  EXPECT_EQ(cluster_->AsRoot({"scontrol", "requeue", absl::StrCat(job)}).code, 0);
  ASSERT_TRUE(cluster_->WaitForState(job, "PENDING"));
  ASSERT_TRUE(WaitForCharge(1, 0));
  EXPECT_THAT(cluster_->Tenants(1), IsEmpty());
  // Slurm would wait two minutes. slurmd refuses a job that starts in the second of its end.
  cluster_->AsRoot({"scontrol", "update", absl::StrCat("JobId=", job), "StartTime=now+3seconds"});
  ASSERT_TRUE(WaitForCharge(1, 2048)) << cluster_->Output(job);
  EXPECT_EQ(cluster_->JobField(job, "Restarts"), "1");
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

TEST_F(SlurmKindsTest, AnInteractiveAllocationIsATenant) {
  if (!Start()) return;
  const auto quota =
      cluster_->AsUser(kUsers[0], {"salloc", "--quiet", "-w", "node1", "--gpumem=1G", "srun",
                                   "--quiet", cluster_->Program("gpumemctl"), "quota"});
  EXPECT_EQ(quota.code, 0) << quota.output;
  EXPECT_THAT(quota.output, HasSubstr("TENANT job-1 "));
  EXPECT_THAT(quota.output, HasSubstr("1.00 GiB"));
  ExpectNothingLeft();
}

TEST_F(SlurmKindsTest, AJobInAContainerOfSlurmSeesTheDaemon) {
  if (!Start({.containers = true})) return;
  // The job has another /tmp, in which the cluster's programs are not.
  ASSERT_EQ(cluster_->OnNode(1, {"/bin/cp", cluster_->Program("gpumemctl"), "/run/gpumemctl"}).code,
            0);
  const auto quota =
      cluster_->AsUser(kUsers[0], {"srun", "--quiet", "-w", "node1", "-D", "/", "--gpumem=1G",
                                   "/bin/sh", "-c", "ls /tmp; exec /run/gpumemctl quota"});
  EXPECT_EQ(quota.code, 0) << quota.output;
  EXPECT_THAT(quota.output, ::testing::StartsWith("TENANT job-1 "));
  EXPECT_THAT(quota.output, HasSubstr("1.00 GiB"));
  ExpectNothingLeft();
}

TEST_F(SlurmKindsTest, ControlGroupsOfVersion2NameTheJob) {
  if (!Start({.cgroup_version = 2})) return;
  const auto whoami =
      cluster_->AsUser(kUsers[0], {"srun", "--quiet", "-w", "node1", "--gpumem=1G",
                                   cluster_->Program("gpumemctl"), "-o", "json", "whoami"});
  ASSERT_EQ(whoami.code, 0) << whoami.output;
  const json who = json::parse(whoami.output);
  EXPECT_EQ(who["tenant"], "job-1") << whoami.output;
  EXPECT_THAT(std::string(who["identity"]["cgroup"]), HasSubstr("slurmstepd.scope/job_1/step_0/"));
  const uint32_t job = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=2G"}, Hold(2048));
  ASSERT_TRUE(WaitForCharge(1, 2048)) << cluster_->Output(job);
  ASSERT_OK(cluster_->Crash(1, "slurmd"));
  ASSERT_OK(cluster_->Crash(1, "gpumemd"));
  EXPECT_THAT(cluster_->Tenants(1), ElementsAre(absl::StrCat("job-", job)));
  EXPECT_EQ(cluster_->Charged(1), uint64_t{2048} << 20);
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

}  // namespace
}  // namespace gpumem
