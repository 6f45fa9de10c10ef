// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/identity/cgroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace gpumemd {
namespace cgroup_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kId = "3f2a9c0d7b1e4f5a6c8d9e0f1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d";
const std::string kOtherId = "00000000000000000000000000000000000000000000000000000000deadbeef";
constexpr char kPodUid[] = "099b88fb-2a99-45ad-af94-d91eb81a87e9";
constexpr char kPodSlice[] = "pod099b88fb_2a99_45ad_af94_d91eb81a87e9.slice";

// Returns all facts but the path, in one line: "unit=a.service slice=b.slice".
std::string FactsOf(const Cgroup& cgroup) {
  std::string all;
  for (size_t i = 1; i < kCgroupFacts; ++i) {
    const auto fact = static_cast<CgroupFact>(i);
    for (const std::string& value : cgroup.Values(fact)) {
      absl::StrAppend(&all, all.empty() ? "" : " ", NameOf(fact), "=", value);
    }
    if (!cgroup.Ambiguity(fact).empty()) {
      absl::StrAppend(&all, all.empty() ? "" : " ", NameOf(fact), "?");
    }
  }
  return all;
}

// In a fixture CID and OTHER stand for containers' ids, POD and PODSLICE for a pod's uid.
std::string Fixture(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"CID", kId}, {"OTHER", kOtherId}, {"PODSLICE", kPodSlice}, {"POD", kPodUid}});
}

struct PathCase {
  std::string name;
  std::string path;
  std::string facts;
};

class CgroupPathTest : public testing::TestWithParam<PathCase> {};

// Gives the same facts in the unified hierarchy and in one of version 1.
TEST_P(CgroupPathTest, SaysSo) {
  const std::string path = Fixture(GetParam().path);
  for (const char* hierarchy : {"0::", "4:memory:", "1:name=systemd:"}) {
    const Cgroup cgroup = Cgroup::Parse(absl::StrCat(hierarchy, path, "\n"));
    EXPECT_EQ(cgroup.unknown(), "");
    EXPECT_EQ(cgroup.Value(CgroupFact::kPath), path);
    EXPECT_EQ(FactsOf(cgroup), Fixture(GetParam().facts));
  }
}

std::string NameOfCase(const testing::TestParamInfo<PathCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Systemd, CgroupPathTest,
    testing::Values(
        PathCase{"Root", "/", ""},
        PathCase{"Service", "/system.slice/infer.service", "unit=infer.service slice=system.slice"},
        PathCase{"InstanceInItsOwnSlice", "/system.slice/system-infer.slice/infer@3.service",
                 "unit=infer@3.service slice=system.slice slice=system-infer.slice"},
        PathCase{"EscapedName", "/system.slice/mnt-a\\x2db.service",
                 "unit=mnt-a\\x2db.service slice=system.slice"},
        PathCase{"LoginSession", "/user.slice/user-1000.slice/session-3.scope",
                 "unit=session-3.scope slice=user.slice slice=user-1000.slice user=1000"},
        // The groups below are the user's: the user may choose their names.
        PathCase{"UsersOwnUnit",
                 "/user.slice/user-1000.slice/user@1000.service/app.slice/infer.service",
                 "unit=user@1000.service slice=user.slice slice=user-1000.slice user=1000"},
        PathCase{"UserWhoPlaysSlurm",
                 "/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_42/step_0",
                 "unit=user@1000.service slice=user.slice slice=user-1000.slice user=1000"},
        PathCase{"UserWhoPlaysAPod",
                 "/user.slice/user-1000.slice/user@1000.service/kubepods.slice/"
                 "kubepods-PODSLICE/cri-containerd-CID.scope",
                 "unit=user@1000.service slice=user.slice slice=user-1000.slice user=1000"},
        PathCase{"ServiceThatPlaysAnother", "/system.slice/a.service/system.slice/b.service",
                 "unit=a.service slice=system.slice"},
        PathCase{"InitScope", "/init.scope", "unit=init.scope"},
        PathCase{"NspawnPayload",
                 "/machine.slice/systemd-nspawn@lab.service/payload/system.slice/infer.service",
                 "unit=systemd-nspawn@lab.service slice=machine.slice"},
        PathCase{"UserSliceOfNobody", "/user.slice/user-alice.slice/session-1.scope",
                 "unit=session-1.scope slice=user.slice slice=user-alice.slice"}),
    NameOfCase);

INSTANTIATE_TEST_SUITE_P(
    Containers, CgroupPathTest,
    testing::Values(
        PathCase{"Docker", "/system.slice/docker-CID.scope",
                 "unit=docker-CID.scope slice=system.slice container=CID"},
        PathCase{"DockerWithoutSystemd", "/docker/CID", "container=CID"},
        PathCase{"DockerBelowItsService", "/system.slice/docker.service/docker/CID",
                 "unit=docker.service slice=system.slice container=CID"},
        PathCase{"Podman", "/machine.slice/libpod-CID.scope/container",
                 "unit=libpod-CID.scope slice=machine.slice container=CID"},
        PathCase{"PodmanWithoutSystemd", "/libpod_parent/libpod-CID", "container=CID"},
        PathCase{"RootlessPodman",
                 "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-CID.scope",
                 "unit=user@1000.service slice=user.slice slice=user-1000.slice user=1000"},
        // The outer container counts: it names the groups inside.
        PathCase{"DockerInDocker", "/docker/CID/docker/OTHER", "container=CID"},
        PathCase{"DockerInDockerWithSystemd",
                 "/system.slice/docker-CID.scope/system.slice/docker-OTHER.scope",
                 "unit=docker-CID.scope slice=system.slice container=CID"},
        PathCase{"ServiceInAContainer", "/system.slice/docker-CID.scope/system.slice/infer.service",
                 "unit=docker-CID.scope slice=system.slice container=CID"},
        PathCase{"WatcherOfAContainer", "/machine.slice/libpod-conmon-CID.scope",
                 "unit=libpod-conmon-CID.scope slice=machine.slice"},
        PathCase{"ShortId", "/system.slice/docker-3f2a9c0d7b1e.scope",
                 "unit=docker-3f2a9c0d7b1e.scope slice=system.slice"},
        PathCase{"LongId", "/system.slice/docker-CIDa.scope",
                 "unit=docker-CIDa.scope slice=system.slice"},
        PathCase{"UpperCaseId",
                 "/docker/"
                 "3F2A9C0D7B1E4F5A6C8D9E0F1A2B3C4D5E6F708192A3B4C5D6E7F8091A2B3C4D",
                 ""},
        PathCase{"UnknownRuntime", "/system.slice/tank-CID.scope",
                 "unit=tank-CID.scope slice=system.slice"},
        PathCase{"IdNowhere", "/CID", ""},
        PathCase{"Lxc", "/lxc.payload.lab/kubepods/podPOD/CID", ""}),
    NameOfCase);

INSTANTIATE_TEST_SUITE_P(
    Kubernetes, CgroupPathTest,
    testing::Values(
        PathCase{"BurstableSystemdContainerd",
                 "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-PODSLICE/"
                 "cri-containerd-CID.scope",
                 "unit=cri-containerd-CID.scope slice=kubepods.slice "
                 "slice=kubepods-burstable.slice slice=kubepods-burstable-PODSLICE "
                 "container=CID pod=POD qos=burstable"},
        PathCase{"BesteffortSystemdCrio",
                 "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-PODSLICE/"
                 "crio-CID.scope/container",
                 "unit=crio-CID.scope slice=kubepods.slice slice=kubepods-besteffort.slice "
                 "slice=kubepods-besteffort-PODSLICE container=CID pod=POD qos=besteffort"},
        PathCase{"GuaranteedSystemd", "/kubepods.slice/kubepods-PODSLICE/docker-CID.scope",
                 "unit=docker-CID.scope slice=kubepods.slice slice=kubepods-PODSLICE "
                 "container=CID pod=POD qos=guaranteed"},
        PathCase{"BurstableCgroupfs", "/kubepods/burstable/podPOD/CID",
                 "container=CID pod=POD qos=burstable"},
        PathCase{"BesteffortCgroupfsCrio", "/kubepods/besteffort/podPOD/crio-CID",
                 "container=CID pod=POD qos=besteffort"},
        PathCase{"GuaranteedCgroupfs", "/kubepods/podPOD/CID",
                 "container=CID pod=POD qos=guaranteed"},
        PathCase{"StaticPod", "/kubepods/burstable/pod5b1f0c4d9a8e7f6a5b4c3d2e1f0a9b8c/CID",
                 "container=CID pod=5b1f0c4d9a8e7f6a5b4c3d2e1f0a9b8c qos=burstable"},
        PathCase{"BelowContainerdWithColons",
                 "/system.slice/containerd.service/kubepods-burstable-PODSLICE:cri-containerd:CID",
                 "unit=containerd.service slice=system.slice container=CID pod=POD "
                 "qos=burstable"},
        PathCase{"KubeletWithARootOfItsOwn",
                 "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
                 "kubelet-kubepods-burstable-PODSLICE/cri-containerd-CID.scope",
                 "unit=cri-containerd-CID.scope slice=kubelet.slice slice=kubelet-kubepods.slice "
                 "slice=kubelet-kubepods-burstable.slice "
                 "slice=kubelet-kubepods-burstable-PODSLICE container=CID pod=POD "
                 "qos=burstable"},
        PathCase{"SlicesBelowTheKubelet",
                 "/system.slice/kubelet.service/kubepods-PODSLICE/cri-containerd-CID.scope",
                 "unit=kubelet.service slice=system.slice container=CID pod=POD qos=guaranteed"},
        PathCase{"UserSliceBelowDocker", "/system.slice/docker.service/user-7.slice",
                 "unit=docker.service slice=system.slice"},
        PathCase{"ColonsWithoutAContainer",
                 "/system.slice/containerd.service/kubepods-PODSLICE:cri-containerd:3f2a",
                 "unit=containerd.service slice=system.slice pod=POD qos=guaranteed"},
        PathCase{"ColonsAfterAnotherSlice", "/kubepods-podPOD:x.slice:CID", ""},
        PathCase{"PodInAPod", "/kubepods-PODSLICE/kubepods-burstable-PODSLICE/a.scope",
                 "unit=a.scope slice=kubepods-PODSLICE slice=kubepods-burstable-PODSLICE "
                 "pod=POD qos=guaranteed"},
        // A node in a container: the machine's root has named the node, and nothing below it.
        PathCase{"NodeInDocker", "/docker/CID/kubelet/kubepods/burstable/podPOD/OTHER",
                 "container=CID"},
        PathCase{"PodUidTooShort", "/kubepods/burstable/pod099b88fb/CID", ""},
        PathCase{"PodUidWithoutItsDashes",
                 "/kubepods.slice/kubepods-pod099b88fb-2a99-45ad-af94-d91eb81a87e9.slice/a.scope",
                 "unit=a.scope slice=kubepods.slice "
                 "slice=kubepods-pod099b88fb-2a99-45ad-af94-d91eb81a87e9.slice"},
        PathCase{"UnknownClass", "/kubepods/golden/podPOD/CID", ""},
        PathCase{"ClassOfNoKubepods", "/burstable/podPOD/CID", ""},
        PathCase{"PodInNoKubepods", "/podPOD/CID", ""},
        PathCase{"SliceThatOnlySoundsLikeIt", "/mykubepods-PODSLICE/a.scope",
                 "unit=a.scope slice=mykubepods-PODSLICE"}),
    NameOfCase);

INSTANTIATE_TEST_SUITE_P(
    Slurm, CgroupPathTest,
    testing::Values(
        PathCase{"Version1", "/slurm/uid_1000/job_42/step_0/task_0", "slurm_job=42 slurm_step=0"},
        PathCase{"Version1Hetjob", "/slurm/uid_1000/job_42/step_0+1",
                 "slurm_job=42 slurm_step=0+1"},
        PathCase{"Version1Batch", "/slurm/uid_1000/job_42/step_batch",
                 "slurm_job=42 slurm_step=batch"},
        PathCase{"Version1SeveralSlurmd", "/slurm_node7/uid_1000/job_42/step_extern/task_1",
                 "slurm_job=42 slurm_step=extern"},
        PathCase{"Version1JobAlone", "/slurm/uid_1000/job_42", "slurm_job=42"},
        PathCase{"Version2", "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
                 "unit=slurmstepd.scope slice=system.slice slurm_job=42 slurm_step=0"},
        PathCase{"Version2SeveralSlurmd",
                 "/system.slice/node7_slurmstepd.scope/job_42/step_interactive/user/task_0",
                 "unit=node7_slurmstepd.scope slice=system.slice slurm_job=42 "
                 "slurm_step=interactive"},
        PathCase{"Version2Daemon", "/system.slice/slurmstepd.scope/system",
                 "unit=slurmstepd.scope slice=system.slice"},
        PathCase{"JobThatIsNoNumber", "/slurm/uid_1000/job_42x/step_0", ""},
        PathCase{"JobWithoutNumber", "/slurm/uid_1000/job_/step_0", ""},
        PathCase{"StepWithoutName", "/slurm/uid_1000/job_42/step_", "slurm_job=42"},
        PathCase{"StepOfStrangeName", "/slurm/uid_1000/job_42/step_0;1", "slurm_job=42"},
        PathCase{"DeeperThanAtTheRoot", "/lab/slurm/uid_1000/job_42/step_0", ""},
        PathCase{"ScopeThatOnlySoundsLikeIt", "/system.slice/myslurmstepd.scope/job_42/step_0",
                 "unit=myslurmstepd.scope slice=system.slice"},
        PathCase{"JobOfNobody", "/job_42/step_0", ""}),
    NameOfCase);

TEST(CgroupTest, HybridWhereAllSayTheSame) {
  const Cgroup cgroup = Cgroup::Parse(
      "12:memory:/user.slice/user-1000.slice\n11:cpu,cpuacct:/\n"
      "1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n"
      "0::/user.slice/user-1000.slice/session-3.scope\n");
  EXPECT_EQ(FactsOf(cgroup),
            "unit=session-3.scope slice=user.slice slice=user-1000.slice user=1000");
  EXPECT_EQ(cgroup.Value(CgroupFact::kPath), "/user.slice/user-1000.slice/session-3.scope");
}

TEST(CgroupTest, HybridWithAnEmptyUnifiedHierarchy) {
  const Cgroup cgroup =
      Cgroup::Parse(Fixture("12:memory:/docker/CID\n1:name=systemd:/docker/CID\n0::/\n"));
  EXPECT_EQ(cgroup.Value(CgroupFact::kPath), Fixture("/docker/CID"));
  EXPECT_EQ(FactsOf(cgroup), Fixture("container=CID"));
}

TEST(CgroupTest, SlurmOnVersion1IsClearThoughThePathIsNot) {
  const Cgroup cgroup = Cgroup::Parse(
      "10:memory:/slurm/uid_1000/job_42/step_0/task_0\n9:cpuset:/slurm/uid_1000/job_42/step_0\n"
      "8:freezer:/slurm/uid_1000/job_42\n7:pids:/system.slice/slurmd.service\n"
      "1:name=systemd:/system.slice/slurmd.service\n");
  EXPECT_EQ(FactsOf(cgroup), "unit=slurmd.service slice=system.slice slurm_job=42 slurm_step=0");
  EXPECT_EQ(cgroup.Value(CgroupFact::kPath), "");
  EXPECT_EQ(cgroup.Ambiguity(CgroupFact::kPath),
            "v1 memory says /slurm/uid_1000/job_42/step_0/task_0, "
            "v1 pids says /system.slice/slurmd.service");
}

TEST(CgroupTest, PathsMayHoldColons) {
  EXPECT_EQ(Cgroup::Parse("0::/a.slice/x:y:z\n").Value(CgroupFact::kPath), "/a.slice/x:y:z");
}

struct AmbiguousCase {
  CgroupFact fact;
  std::string memory, pids;
  std::string says;
};

TEST(CgroupTest, HierarchiesThatDisagreeSayNothing) {
  const std::vector<AmbiguousCase> cases = {
      {CgroupFact::kSlurmJob, "/slurm/uid_1/job_42", "/slurm/uid_1/job_43",
       "v1 memory says 42, v1 pids says 43"},
      {CgroupFact::kSlurmStep, "/slurm/uid_1/job_42/step_0", "/slurm/uid_1/job_42/step_1",
       "v1 memory says 42/0, v1 pids says 42/1"},
      // The same step of another job, and a job with an unknown step.
      {CgroupFact::kSlurmStep, "/slurm/uid_1/job_42/step_0", "/slurm/uid_1/job_43/step_0",
       "v1 memory says 42/0, v1 pids says 43/0"},
      {CgroupFact::kSlurmStep, "/slurm/uid_1/job_42/step_0", "/slurm/uid_1/job_4",
       "v1 memory says 42/0, v1 pids says 4"},
      {CgroupFact::kUnit, "/a.slice/a.service", "/a.slice/b.service",
       "v1 memory says a.service, v1 pids says b.service"},
      {CgroupFact::kSlice, "/a.slice/x.service", "/b.slice/x.service",
       "v1 memory says a.slice, v1 pids says b.slice"},
      {CgroupFact::kSlice, "/a.slice/x.service", "/a.sliced.slice/x.service",
       "v1 memory says a.slice, v1 pids says a.sliced.slice"},
      {CgroupFact::kUser, "/user.slice/user-1.slice", "/user.slice/user-2.slice",
       "v1 memory says 1, v1 pids says 2"},
      {CgroupFact::kContainer, "/docker/CID", "/docker/OTHER",
       "v1 memory says CID, v1 pids says OTHER"},
      {CgroupFact::kPod, "/kubepods/podPOD", "/kubepods/pod5b1f0c4d9a8e7f6a5b4c3d2e1f0a9b8c",
       "v1 memory says POD, v1 pids says 5b1f0c4d9a8e7f6a5b4c3d2e1f0a9b8c"},
      {CgroupFact::kQos, "/kubepods/podPOD", "/kubepods/burstable/podPOD",
       "v1 memory says POD/guaranteed, v1 pids says POD/burstable"},
      {CgroupFact::kPath, "/a/b", "/a/c", "v1 memory says /a/b, v1 pids says /a/c"},
      {CgroupFact::kPath, "/a", "/ab", "v1 memory says /a, v1 pids says /ab"},
  };
  for (const AmbiguousCase& one : cases) {
    SCOPED_TRACE(one.says);
    const Cgroup cgroup = Cgroup::Parse(
        Fixture(absl::StrCat("5:cpu:/\n4:memory:", one.memory, "\n3:pids:", one.pids, "\n0::/\n")));
    EXPECT_EQ(cgroup.unknown(), "");
    EXPECT_EQ(cgroup.Ambiguity(one.fact), Fixture(one.says));
    EXPECT_THAT(cgroup.Values(one.fact), IsEmpty());
    EXPECT_EQ(cgroup.Value(one.fact), "");
  }
}

TEST(CgroupTest, WhatIsAmbiguousIsToldInFewWords) {
  const std::string deep(4000, 'x');
  const Cgroup cgroup = Cgroup::Parse(absl::StrCat("4:memory:/a", deep, "\n3:pids:/b", deep, "\n"));
  EXPECT_LT(cgroup.Ambiguity(CgroupFact::kPath).size(), 300u);
  EXPECT_THAT(cgroup.Ambiguity(CgroupFact::kPath), HasSubstr("xxx..., v1 pids says /bxx"));
}

TEST(CgroupTest, WhatCannotBeUnderstoodLeavesAllUnknown) {
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"", "the kernel does not report it"},
           {"\n\n", "the kernel does not report it"},
           {"garbage\n", "the kernel's answer does not parse"},
           {"0:/a.slice\n", "the kernel's answer does not parse"},
           {"0::\n", "the kernel's answer does not parse"},
           {"0::a.slice\n", "the kernel's answer does not parse"},
           {"4:memory:/a.slice\ngarbage\n", "the kernel's answer does not parse"},
           {"0::/..\n", "its group is outside of the daemon's cgroup namespace"},
           {"0::/../../system.slice/a.service\n",
            "its group is outside of the daemon's cgroup namespace"},
           {"0::/a.slice/../b.slice\n", "its group is outside of the daemon's cgroup namespace"},
           // One such hierarchy suffices.
           {"4:memory:/slurm/uid_1/job_42\n0::/../x\n",
            "its group is outside of the daemon's cgroup namespace"},
           {"0::/system.slice/a.service (deleted)\n", "its group was removed"},
       }) {
    SCOPED_TRACE(text);
    const Cgroup cgroup = Cgroup::Parse(text);
    EXPECT_EQ(cgroup.unknown(), why);
    EXPECT_EQ(FactsOf(cgroup), "");
    EXPECT_EQ(cgroup.Value(CgroupFact::kPath), "");
  }
  EXPECT_EQ(Cgroup().unknown(), "it has not been read");
  EXPECT_EQ(Cgroup::Parse("0::/..a/b..\n").unknown(), "");  // ordinary names
}

// Parsing any text ends, and all facts that it finds are valid.
TEST(CgroupTest, SurvivesEverything) {
  const std::vector<std::string> pieces = {"/",
                                           "..",
                                           ".slice",
                                           ".scope",
                                           ".service",
                                           "kubepods",
                                           "-",
                                           "pod",
                                           kPodUid,
                                           kPodSlice,
                                           kId,
                                           "docker-",
                                           "docker/",
                                           "slurm",
                                           "job_",
                                           "step_",
                                           "uid_1",
                                           "42",
                                           ":",
                                           "\n",
                                           "0::",
                                           "4:memory",
                                           "user-",
                                           "burstable",
                                           "\xff",
                                           "*",
                                           "\\",
                                           "besteffort",
                                           "slurmstepd.scope",
                                           "user@1.service",
                                           " "};
  std::mt19937 random(20241121);
  int facts = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::string text = round % 2 == 0 ? "0::/" : "";
    for (size_t i = random() % 12; i > 0; --i) text += pieces[random() % pieces.size()];
    const Cgroup cgroup = Cgroup::Parse(text);
    const std::string& container = cgroup.Value(CgroupFact::kContainer);
    EXPECT_TRUE(container.empty() || container == kId) << text;
    const std::string& pod = cgroup.Value(CgroupFact::kPod);
    EXPECT_TRUE(pod.empty() || pod == kPodUid) << text;
    EXPECT_EQ(pod.empty(), cgroup.Value(CgroupFact::kQos).empty()) << text;
    EXPECT_EQ(cgroup.unknown().empty(), !cgroup.Answers(CgroupFact::kPath).empty()) << text;
    facts += !FactsOf(cgroup).empty();
  }
  EXPECT_GT(facts, 1000);
}

}  // namespace cgroup_test
}  // namespace gpumemd
