// SPDX-License-Identifier: Apache-2.0
// Jobs of each kind of a real Slurm, and each of its ways to keep their processes together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
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

using nlohmann::json;
using ::testing::ElementsAre;
using testing::Eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kUsers;

using SlurmKindsTest = SlurmTest;

constexpr char kGpu[] = "HOST-00000000-0000-0000-0000-000000000000";

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

TEST_F(SlurmKindsTest, PeaksAreInTheJobsRecord) {
  if (!Start({.plugin_args = "account=yes"})) return;
  const uint32_t job = cluster_->Submit(
      kUsers[0], {"-w", "node1", "--gpumem=2G"},
      absl::StrCat("srun --quiet ", Hold(1024), " --for 1ms; ", Hold(512), " --for 1ms"));
  ASSERT_TRUE(cluster_->WaitForState(job, "COMPLETED")) << cluster_->Output(job);
  EXPECT_THAT(cluster_->AsRoot({"scontrol", "show", "job", absl::StrCat(job)}).output,
              ::testing::ContainsRegex(absl::StrCat("AdminComment=gpumem_peak_node1=", kGpu, ":",
                                                    1 << 30, " gpumem_byte_seconds_node1=", kGpu,
                                                    ":[1-9][0-9]* ?\n")));
  ExpectNothingLeft();
  EXPECT_THAT(testing::ReadText(absl::StrCat(cluster_->folder(), "/node1/slurmd.log")),
              ::testing::ContainsRegex(
                  absl::StrCat("ms; peak 1.00 GiB on ", kGpu, "; <?[0-9.]+ GiB-hours on ", kGpu)));
}

// Returns the figures of the device that a job is on, by gpumemctl usage. `usage`: null, if it did
// not answer.
json OnGpu(const json& usage) {
  if (usage.is_object()) {
    for (const json& device : usage["devices"]) {
      if (device["device_uuid"] == kGpu) return device;
    }
  }
  return {{"byte_seconds", 0}};
}

TEST_F(SlurmKindsTest, UsageOfAJobSurvivesTheDaemonAndIsKnownAfterTheJob) {
  if (!Start()) return;
  const uint32_t job = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=2G"}, Hold(1024));
  ASSERT_TRUE(WaitForCharge(1, 1024)) << cluster_->Output(job);
  const std::vector<std::string> ask = {"usage", "--job", absl::StrCat(job)};
  const auto usages = [&] { return cluster_->Gpumemctl(1, ask)["usages"]; };
  const uint64_t second = 1 << 30;  // of 1 GiB
  ASSERT_TRUE(
      Eventually([&] { return OnGpu(usages()[0])["byte_seconds"].get<uint64_t>() >= 2 * second; },
                 absl::Seconds(60)));
  json now = usages();
  ASSERT_EQ(now.size(), 1u);
  EXPECT_EQ(now[0]["tenant"], absl::StrCat("job-", job));
  EXPECT_EQ(now[0]["owner"], "slurm");
  EXPECT_EQ(now[0]["user"], kUsers[0]);
  EXPECT_TRUE(now[0]["ended_ms"].is_null());
  EXPECT_EQ(OnGpu(now[0])["limit_bytes"], uint64_t{2} << 30);
  EXPECT_EQ(OnGpu(now[0])["guarantee_bytes"], uint64_t{2} << 30);
  EXPECT_EQ(OnGpu(now[0])["charged_bytes"], 1 << 30);
  EXPECT_EQ(OnGpu(now[0])["peak_bytes"], 1 << 30);

  // kill -9, long after the last change of the job's memory.
  ASSERT_OK(cluster_->Crash(1, "gpumemd"));
  const json later = usages();
  ASSERT_EQ(later.size(), 1u);
  EXPECT_EQ(later[0]["user"], kUsers[0]);
  EXPECT_EQ(OnGpu(later[0])["peak_bytes"], 1 << 30);
  const auto used = OnGpu(later[0])["byte_seconds"].get<uint64_t>();
  EXPECT_GE(used, OnGpu(now[0])["byte_seconds"].get<uint64_t>());

  // Its user may ask from another job, others may not.
  std::vector<std::string> run = {"srun",  "--quiet",     "-w",
                                  "node1", "--gpumem=1G", cluster_->Program("gpumemctl")};
  run.insert(run.end(), ask.begin(), ask.end());
  const auto own = cluster_->AsUser(kUsers[0], run);
  EXPECT_EQ(own.code, 0) << own.output;
  EXPECT_THAT(own.output, HasSubstr(absl::StrCat("Tenant job-", job, " of slurm, uid ")));
  EXPECT_THAT(own.output, HasSubstr(": is there\n"));
  const auto others = cluster_->AsUser(kUsers[1], run);
  EXPECT_NE(others.code, 0) << others.output;
  EXPECT_THAT(others.output, HasSubstr("knows no tenant"));

  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
  const json ended = usages();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_FALSE(ended[0]["ended_ms"].is_null());
  EXPECT_EQ(OnGpu(ended[0])["peak_bytes"], 1 << 30);
  EXPECT_EQ(OnGpu(ended[0])["limit_bytes"], uint64_t{2} << 30);
  EXPECT_GE(OnGpu(ended[0])["byte_seconds"].get<uint64_t>(), used);
  const auto after = cluster_->AsUser(kUsers[0], run);
  EXPECT_EQ(after.code, 0) << after.output;
  EXPECT_THAT(after.output, HasSubstr("UTC: has ended\n"));
  EXPECT_NE(cluster_->AsUser(kUsers[1], run).code, 0);
  const auto never =
      cluster_->OnNode(1, {cluster_->Program("gpumemctl"), "usage", "--job", "999999"});
  EXPECT_NE(never.code, 0);
  EXPECT_THAT(never.output, HasSubstr("knows no tenant \"job-999999\""));
}

TEST_F(SlurmKindsTest, AJobInAContainerOfSlurmSeesTheDaemon) {
  if (!Start({.containers = true})) return;
  testing::Cluster::Result quota;
  const auto runs = [&] {
    quota = cluster_->AsUser(
        kUsers[0], {"srun", "--quiet", "-w", "node1", "--gpumem=1G", "/bin/sh", "-c",
                    absl::StrCat("ls /tmp; exec ", cluster_->Program("gpumemctl"), " quota")});
    return quota.code == 0;
  };
  // The step that keeps the first container of a node may end early in Slurm 22.05, and the job
  // with it: "Nodes node1 are still not ready".
  EXPECT_TRUE(Eventually(runs, absl::Seconds(60))) << quota.output;
  EXPECT_THAT(quota.output, ::testing::StartsWith("TENANT job-")) << "its /tmp is empty";
  EXPECT_THAT(quota.output, HasSubstr("1.00 GiB"));
  ExpectNothingLeft();
}

// Each node gives it back, and it is neither ended by the second one nor started twice.
TEST_F(SlurmKindsTest, AJobOfTwoNodesThatFitsOnNoOneGpuIsHeld) {
  if (!Start({.gpus = 2})) return;
  const uint32_t job = cluster_->Submit(kUsers[0], {"-N", "2", "--gpumem=5G"}, "true");
  ASSERT_TRUE(Eventually([&] {
    return cluster_->JobField(job, "JobState") == "PENDING" &&
           cluster_->JobField(job, "Restarts") == "1";
  })) << cluster_->JobField(job, "JobState");
  EXPECT_TRUE(WaitForTenants(1, {}) && WaitForTenants(2, {}));
  EXPECT_EQ(cluster_->JobField(job, "JobState"), "PENDING");
  EXPECT_THAT(cluster_->JobField(job, "Reason"), HasSubstr("held"));
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

// Two GPUs of 4 GiB: Slurm counts 8.
TEST_F(SlurmKindsTest, AJobThatFitsOnNoOneGpuWaits) {
  if (!Start({.gpus = 2})) return;
  const uint32_t first = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=3G"},
                                          Hold(3072) + " --device most-free");
  const uint32_t second = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=3G"},
                                           Hold(3072) + " --device most-free");
  ASSERT_TRUE(WaitForCharge(1, 6144));
  const uint32_t third = cluster_->Submit(kUsers[1], {"-w", "node1", "--gpumem=2G"},
                                          Hold(2048) + " --device most-free");
  ASSERT_TRUE(
      Eventually([&] { return cluster_->JobField(third, "Restarts") == "1"; }, absl::Seconds(60)));
  ASSERT_TRUE(cluster_->WaitForState(third, "PENDING"));
  EXPECT_THAT(cluster_->NodeField(1, "State"), ::testing::Not(HasSubstr("DRAIN")));
  EXPECT_THAT(cluster_->JobField(third, "Reason"), ::testing::Not(HasSubstr("eld")));
  EXPECT_EQ(cluster_->Output(third), "") << "it had no memory, and did not run";
  cluster_->AsRoot({"scancel", absl::StrCat(first)});
  ASSERT_TRUE(WaitForCharge(1, 3072));
  // Slurm would wait two minutes.
  cluster_->AsRoot({"scontrol", "update", absl::StrCat("JobId=", third), "StartTime=now+3seconds"});
  ASSERT_TRUE(WaitForCharge(1, 5120)) << cluster_->Output(third);

  const uint32_t large = cluster_->Submit(kUsers[1], {"-w", "node2", "--gpumem=5G"}, "true");
  ASSERT_TRUE(
      Eventually([&] { return absl::StrContains(cluster_->JobField(large, "Reason"), "eld"); },
                 absl::Seconds(60)));
  EXPECT_THAT(cluster_->NodeField(2, "State"), ::testing::Not(HasSubstr("DRAIN")));
  const auto direct = cluster_->AsUser(
      kUsers[1], {"srun", "--quiet", "-w", "node2", "--gpumem=5G", "/bin/echo", "ran"});
  EXPECT_NE(direct.code, 0);
  EXPECT_THAT(direct.output, ::testing::Not(HasSubstr("ran\n")));
  for (const uint32_t job : {second, third, large}) {
    cluster_->AsRoot({"scancel", absl::StrCat(job)});
  }
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
