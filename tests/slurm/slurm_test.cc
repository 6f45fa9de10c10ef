// SPDX-License-Identifier: Apache-2.0
// Jobs of a real Slurm, and the GPU memory that they may have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <memory>
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
using ::testing::StartsWith;

TEST_F(SlurmTest, AJobIsATenantWithItsMemory) {
  if (!Start()) return;
  const auto whoami =
      cluster_->AsUser(kUsers[0], {"srun", "--quiet", "-w", "node1", "--gpumem=1G",
                                   cluster_->Program("gpumemctl"), "-o", "json", "whoami"});
  ASSERT_EQ(whoami.code, 0) << whoami.output;
  const json who = json::parse(whoami.output);
  EXPECT_EQ(who["tenant"], "job-1");
  EXPECT_EQ(who["identity"]["uid"], kUsers[0]);

  const uint32_t job = cluster_->Submit(
      kUsers[0], {"-w", "node2", "--gpumem=1G,guarantee=512M,priority=-7,wait=3s"}, Hold(512));
  ASSERT_NE(job, 0u);
  ASSERT_TRUE(WaitForCharge(2, 512)) << cluster_->Output(job);
  const json quota = cluster_->Gpumemctl(2, {"quota", "get", absl::StrCat("job-", job)});
  EXPECT_EQ(quota["quota"]["total_limit_bytes"], 1 << 30);
  EXPECT_EQ(quota["quota"]["devices"][0]["limit_bytes"], 1 << 30);
  EXPECT_EQ(quota["quota"]["guarantees"][0]["guarantee_bytes"], 512 << 20);
  EXPECT_EQ(quota["quota"]["priority"], -7);
  EXPECT_THAT(cluster_->Tenants(1), IsEmpty());
  EXPECT_EQ(cluster_->AsUser(kUsers[0], {"scancel", absl::StrCat(job)}).code, 0);
  ExpectNothingLeft();
}

TEST_F(SlurmTest, ARequestOfGenericResourcesIsEnough) {
  if (!Start()) return;
  const uint32_t job = cluster_->Submit(kUsers[0], {"--gres=gpumem:1536", "-N2"}, Hold(1536));
  ASSERT_NE(job, 0u);
  ASSERT_TRUE(WaitForCharge(1, 1536)) << cluster_->Output(job);
  // On every node of the job, and the batch script runs on the first alone.
  EXPECT_THAT(cluster_->Tenants(1), ElementsAre(absl::StrCat("job-", job)));
  EXPECT_THAT(cluster_->Tenants(2), ElementsAre(absl::StrCat("job-", job)));
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

TEST_F(SlurmTest, AJobWithoutGpuMemoryIsNotTouched) {
  if (!Start()) return;
  cluster_->Stop(1, "gpumemd");
  const auto hello =
      cluster_->AsUser(kUsers[0], {"srun", "--quiet", "-w", "node1", "echo", "hello"});
  EXPECT_EQ(hello.output, "hello\n");
  ASSERT_OK(cluster_->Run(1, "gpumemd"));
  const auto who = cluster_->AsUser(
      kUsers[0], {"srun", "--quiet", "-w", "node1", cluster_->Program("gpumemctl"), "whoami"});
  EXPECT_THAT(who.output, HasSubstr(absl::StrCat("user-", kUsers[0])));
  ExpectNothingLeft();
}

TEST_F(SlurmTest, AboveItsLimitAJobIsDeniedByName) {
  if (!Start()) return;
  const auto denied =
      cluster_->AsUser(kUsers[0], {"srun", "--quiet", "-w", "node1", "--gpumem=1G",
                                   cluster_->Program("gpumemctl"), "hold", "--size", "1026MiB"});
  EXPECT_EQ(denied.code, 5) << denied.output;
  EXPECT_THAT(denied.output, HasSubstr("job-1"));
  EXPECT_THAT(denied.output, HasSubstr("1.00 GiB"));
  ExpectNothingLeft();
}

TEST_F(SlurmTest, SubmissionsThatCannotBeAreRefused) {
  if (!Start()) return;
  const auto refused = [&](std::vector<std::string> options) {
    options.insert(options.begin(), "sbatch");
    options.push_back("--wrap=true");
    const auto result = cluster_->AsUser(kUsers[0], options);
    EXPECT_NE(result.code, 0) << result.output;
    return result.output;
  };
  const std::string too_large = "Requested node configuration is not available";
  EXPECT_THAT(refused({"--gpumem=4097"}), HasSubstr(too_large)) << "in Slurm's words";
  EXPECT_THAT(refused({"--gres=gpumem:4097"}), HasSubstr(too_large));
  EXPECT_THAT(refused({"--gpumem=1x"}), HasSubstr("\"1x\" is no size"));
  EXPECT_THAT(refused({"--gpumem=1G,guarantee=2G"}), HasSubstr("above the size"));
  EXPECT_THAT(refused({"--gpumem=1G", "--gres=gpumem:5"}), HasSubstr("another amount of gpumem"));
  ExpectNothingLeft();
}

TEST_F(SlurmTest, JobsShareTheBytesOfAGpu) {
  if (!Start()) return;
  const auto submit = [&](const std::string& size, int mib) {
    return cluster_->Submit(kUsers[0], {"-w", "node1", absl::StrCat("--gpumem=", size)}, Hold(mib));
  };
  const uint32_t large = submit("3G", 3072), small = submit("1G", 1024);
  ASSERT_TRUE(WaitForCharge(1, 4096)) << cluster_->Output(large) << cluster_->Output(small);
  const uint32_t next = submit("2G", 2048);
  ASSERT_TRUE(Eventually([&] { return cluster_->JobField(next, "Reason") == "Resources"; }));
  // The small one's end is not enough, the large one's is.
  cluster_->AsRoot({"scancel", absl::StrCat(small)});
  ASSERT_TRUE(WaitForCharge(1, 3072));
  EXPECT_EQ(cluster_->JobField(next, "JobState"), "PENDING");
  cluster_->AsRoot({"scancel", absl::StrCat(large)});
  ASSERT_TRUE(WaitForCharge(1, 2048)) << cluster_->Output(next);
  EXPECT_EQ(cluster_->JobField(next, "JobState"), "RUNNING");
  cluster_->AsRoot({"scancel", absl::StrCat(next)});
  ExpectNothingLeft();
}

TEST_F(SlurmTest, ShardsKeepAJobWithinAGpu) {
  if (!Start({.gpus = 2, .gres = "shard"})) return;
  std::vector<uint32_t> jobs;
  for (int i = 0; i < 3; ++i) {
    jobs.push_back(cluster_->Submit(kUsers[i], {"-w", "node1", "--gpumem=2500M"},
                                    Hold(2500) + " --device most-free"));
  }
  ASSERT_TRUE(WaitForCharge(1, 5000)) << cluster_->Output(jobs[0]) << cluster_->Output(jobs[1]);
  // There are 3192 MiB left, on two GPUs.
  EXPECT_EQ(cluster_->JobField(jobs[2], "JobState"), "PENDING");
  const json devices = cluster_->Gpumemctl(1, {"status"})["devices"];
  EXPECT_EQ(devices[0]["charged_bytes"], uint64_t{2500} << 20);
  EXPECT_EQ(devices[1]["charged_bytes"], uint64_t{2500} << 20);
  cluster_->AsRoot({"scancel", absl::StrCat(jobs[0])});
  ASSERT_TRUE(Eventually([&] { return cluster_->JobField(jobs[2], "JobState") == "RUNNING"; }));
  ASSERT_TRUE(WaitForCharge(1, 5000)) << cluster_->Output(jobs[2]);
  for (const uint32_t job : jobs) cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

TEST_F(SlurmTest, WholeGpusShareTheJobsMemory) {
  if (!Start({.gpus = 2, .whole_gpus = true})) return;
  const auto quota =
      cluster_->AsUser(kUsers[0], {"srun", "--quiet", "-w", "node1", "--gres=gpu:2", "--gpumem=4G",
                                   cluster_->Program("gpumemctl"), "-o", "json", "quota"});
  ASSERT_EQ(quota.code, 0) << quota.output;
  const json parsed = json::parse(quota.output);
  EXPECT_EQ(parsed["tenant"], "job-1");
  for (int gpu = 0; gpu < 2; ++gpu) {
    EXPECT_EQ(parsed["usage"]["devices"][gpu]["limit_bytes"], uint64_t{2} << 30);
    EXPECT_EQ(parsed["usage"]["devices"][gpu]["guarantee_bytes"], uint64_t{2} << 30);
  }
  ExpectNothingLeft();
}

TEST_F(SlurmTest, SitesBoundPriorityAndNameAParent) {
  if (!Start({.plugin_args = "parent=jobs max_priority=5"})) return;
  const auto quota =
      cluster_->AsUser(kUsers[0], {"srun", "--quiet", "-w", "node1", "--gpumem=1G,priority=900",
                                   cluster_->Program("gpumemctl"), "-o", "json", "quota"});
  ASSERT_EQ(quota.code, 0) << quota.output;
  const json parsed = json::parse(quota.output);
  EXPECT_EQ(parsed["quota"]["priority"], 5);
  EXPECT_EQ(parsed["quota"]["parent"], "jobs");
  ExpectNothingLeft();
}

TEST_F(SlurmTest, ScriptsServeWithoutThePlugin) {
  if (!Start({.scripts = true})) return;
  const uint32_t job =
      cluster_->Submit(kUsers[0], {"-w", "node1", "--gres=gpumem:2048"}, Hold(2048));
  ASSERT_TRUE(WaitForCharge(1, 2048)) << cluster_->Output(job);
  EXPECT_THAT(cluster_->Tenants(1), ElementsAre(absl::StrCat("job-", job)));
  cluster_->AsRoot({"scancel", absl::StrCat(job)});
  ExpectNothingLeft();
}

TEST_F(SlurmTest, AJobSeesTheGpuThatItsMemoryIsOn) {
  if (!Start({.gpus = 2})) return;
  // The first job takes the first GPU. No other has room for the second one.
  const std::string script =
      absl::StrCat("echo $CUDA_VISIBLE_DEVICES; exec ", Hold(3072), " --device most-free");
  const uint32_t first = cluster_->Submit(kUsers[0], {"-w", "node1", "--gpumem=3G"}, script);
  ASSERT_TRUE(WaitForCharge(1, 3072)) << cluster_->Output(first);
  const uint32_t second = cluster_->Submit(kUsers[1], {"-w", "node1", "--gpumem=3G"}, script);
  ASSERT_TRUE(WaitForCharge(1, 6144)) << cluster_->Output(second);
  EXPECT_THAT(cluster_->Output(first), StartsWith("HOST-00000000-"));
  EXPECT_THAT(cluster_->Output(second), StartsWith("HOST-00000001-"));
  cluster_->AsRoot({"scancel", absl::StrCat(first), absl::StrCat(second)});
  ExpectNothingLeft();
  EXPECT_EQ(cluster_->OnNode(1, {"/bin/ls", "/run/gpumem-slurm"}).output, "lock\n");
}

TEST_F(SlurmTest, TheConfigurationIsPrintedByTheNode) {
  if (!Start()) return;
  const auto gres = cluster_->OnNode(1, {cluster_->Program("gpumem-slurm"), "gres"});
  EXPECT_EQ(gres.output,
            "# slurm.conf\nGresTypes=gpumem\nNodeName=node1 Gres=gpumem:4096\n"
            "# gres.conf\nNodeName=node1 Name=gpumem Count=4096\n");
}

}  // namespace
}  // namespace gpumem
