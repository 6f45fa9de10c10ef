// SPDX-License-Identifier: Apache-2.0
// gpumemd in a container as on a node of Kubernetes, with clients in containers of other users'
// pods. Each container is a real one (crun) with separate namespaces. The test commands the clients
// over a socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/child.h"
#include "tests/support/container_host.h"
#include "tests/support/daemon_process.h"
#include "tests/system/testing/container_fixture.h"
#include "tests/system/testing/container_worker.h"

namespace gpumem {
namespace {

using nlohmann::json;
using testing::ContainerSpec;
using testing::ContainerTest;
using testing::Eventually;
using testing::GroupOf;
using ::testing::HasSubstr;
using testing::Inside;
using testing::kBlue;
using testing::kDaemonUid;
using testing::kRed;
using testing::ManifestConfig;
using ::testing::StartsWith;
using testing::Worker;

TEST_F(ContainerTest, PodsAreTenantsByTheirControlGroups) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  // All of one uid: only the pod distinguishes them.
  Worker red = StartWorker("red", kRed);
  Worker blue = StartWorker("blue", kBlue);
  Worker other = StartWorker("other", "cccccccc-1111-4222-8333-444444444444");
  for (Worker* worker : {&red, &blue, &other}) ASSERT_EQ(worker->Ask("connect"), "OK") << Log();
  EXPECT_EQ(red.Ask("tenant"), "red");
  EXPECT_EQ(blue.Ask("tenant"), "blue");
  EXPECT_EQ(other.Ask("tenant"), "pod-cccccccc-1111-4222-8333-444444444444");

  const json who =
      json::parse(host_->Exec("blue", {Inside("gpumemctl"), "whoami", "--json"}).output);
  EXPECT_EQ(who["tenant"], "blue");
  std::map<std::string, json> facts;
  for (const json& fact : who["identity"]["facts"]) facts[fact["name"]] = fact["values"];
  EXPECT_EQ(facts["pod"], json({kBlue}));
  EXPECT_EQ(facts["qos"], json({"burstable"}));
  EXPECT_EQ(who["identity"]["cgroup"], GroupOf("blue", kBlue));
  EXPECT_EQ(facts["container"].dump().size(), strlen("[\"\"]") + 64);
  EXPECT_THAT(Log(),
              HasSubstr(absl::StrCat("the group of this daemon is ", DaemonSpec().cgroup, "\n")));
}

// Over the container's own, which is not to be seen then.
TEST_F(ContainerTest, TheNodesGroupsMayBeMountedWhereTheContainersAre) {
  ContainerSpec spec = DaemonSpec();
  for (auto& mount : spec.mounts) {
    if (mount.source == "/sys/fs/cgroup") mount.target = mount.source;
  }
  ASSERT_TRUE(StartDaemon(spec));
  Worker red = StartWorker("red", kRed);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  EXPECT_EQ(red.Ask("tenant"), "red") << Log();
}

TEST_F(ContainerTest, TheManifestsRulesTellTheirExamplesApart) {
  std::ofstream(host_->folder() + "/gpumemd.toml") << ManifestConfig();
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  ContainerSpec spec = WorkerSpec("serving", kRed, 10001);
  spec.cgroup = GroupOf("serving", kRed, "guaranteed");
  spec.mounts.push_back({host_->folder() + "/run", "/run/gpumem", true});
  Worker serving = StartWorker(spec);
  Worker training = StartWorker("training", kBlue, 10001);
  ASSERT_EQ(serving.Ask("connect"), "OK") << Log();
  ASSERT_EQ(training.Ask("connect"), "OK") << Log();
  EXPECT_EQ(serving.Ask("tenant"), "serving");
  EXPECT_EQ(training.Ask("tenant"), absl::StrCat("pod-", kBlue));
}

TEST_F(ContainerTest, AClientInItsOwnPidNamespaceIsKnown) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  Worker red = StartWorker("red", kRed, 1234);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  EXPECT_EQ(red.Ask("pid"), "1");
  const json sessions = Sessions();
  ASSERT_EQ(sessions.size(), 1u) << Log();
  EXPECT_EQ(sessions[0]["pid"], host_->PidOf("red"));
  EXPECT_EQ(sessions[0]["uid"], 1234);
  EXPECT_EQ(sessions[0]["command"], "worker");
}

TEST_F(ContainerTest, ADaemonThatDoesNotSeeTheNodesProcessesRefusesThem) {
  ContainerSpec spec = DaemonSpec();
  spec.host_pid = false;
  ASSERT_TRUE(StartDaemon(spec));
  Worker red = StartWorker("red", kRed);
  EXPECT_THAT(red.Ask("connect"), HasSubstr("hostPID"));
}

TEST_F(ContainerTest, ADaemonThatDoesNotSeeTheNodesGroupsBillsByUid) {
  ContainerSpec spec = DaemonSpec();
  spec.mounts.erase(std::find_if(spec.mounts.begin(), spec.mounts.end(), [](const auto& mount) {
    return mount.source == "/sys/fs/cgroup";
  }));
  ASSERT_TRUE(StartDaemon(spec));
  Worker red = StartWorker("red", kRed, 1234);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  EXPECT_EQ(red.Ask("tenant"), "user-1234");
  EXPECT_THAT(Log(), HasSubstr("the machine's control groups are not visible"));
}

TEST_F(ContainerTest, NobodyInAnotherContainerIsAnOperator) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  std::vector<Worker> workers;
  for (const uid_t uid :
       {uid_t{0}, kDaemonUid}) {  // root here has no capability to open the socket
    const std::string name = absl::StrCat("uid-", uid);
    workers.push_back(StartWorker(name, kRed, uid));
    EXPECT_EQ(workers.back().Ask("connect"), "OK") << "it is a client like others";
    const auto refused =
        host_->Exec(name, {Inside("gpumemctl"), "quota", "set", "red", "--limit", "200MiB"});
    EXPECT_EQ(refused.code, 4) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr("outside containers or in the daemon's container"));
  }
  EXPECT_THAT(Log(), HasSubstr("its process is in another PID namespace, in a container"));
  // One that sees the node's processes, as the daemon's own does, is the node's affair.
  ContainerSpec spec = WorkerSpec("operator", kRed, kDaemonUid);
  spec.host_pid = true;
  spec.mounts.push_back({host_->folder() + "/run", "/run/gpumem", true});
  workers.push_back(StartWorker(spec));
  EXPECT_EQ(workers.back().Ask("connect"), "OK");
  const auto status = host_->Exec("operator", {Inside("gpumemctl"), "status"});
  EXPECT_EQ(status.code, 0) << status.output;
}

TEST_F(ContainerTest, TwoTenantsShareAPublicationAndKeepTheirLimits) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  Worker red = StartWorker("red", kRed, 1001);
  Worker blue = StartWorker("blue", kBlue, 1002);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  ASSERT_EQ(blue.Ask("connect"), "OK") << Log();

  // Red may have 128 MiB, and not a page more.
  EXPECT_EQ(red.Ask("acquire 128"), "OK");
  EXPECT_THAT(red.Ask("acquire 2"), StartsWith("RESOURCE_EXHAUSTED"));
  EXPECT_EQ(red.Ask("publish weights"), "OK");
  // Attached tenants are not charged.
  EXPECT_EQ(blue.Ask("attach red/weights"), "OK");
  EXPECT_EQ(blue.Ask("charged"), "0");
  EXPECT_EQ(red.Ask("charged"), absl::StrCat(128 * kMiB));
  // The device has 128 MiB left, within blue's limit.
  EXPECT_EQ(blue.Ask("acquire 64"), "OK");
  EXPECT_EQ(blue.Ask("check"), "OK");
}

TEST_F(ContainerTest, TheMemoryOfAKilledContainerComesBack) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  Worker red = StartWorker("red", kRed);
  Worker blue = StartWorker("blue", kBlue);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  ASSERT_EQ(blue.Ask("connect"), "OK") << Log();
  EXPECT_EQ(blue.Ask("acquire 192"), "OK");
  EXPECT_THAT(red.Ask("acquire 128"), StartsWith("RESOURCE_EXHAUSTED"));

  red.Say("acquire 128 wait");
  ASSERT_TRUE(Eventually([&] { return Waiting("red") == 1; })) << Ctl({"quota", "list"}).output;
  EXPECT_EQ(host_->Kill("blue", "KILL").code, 0);
  EXPECT_EQ(blue.child().Wait(), 128 + SIGKILL);
  EXPECT_EQ(red.Hear(), "OK");
  EXPECT_EQ(red.Ask("check"), "OK");
  EXPECT_EQ(Sessions().size(), 1u) << Sessions();
}

TEST_F(ContainerTest, ClientsOutliveTheDaemonsDeathInItsContainer) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  Worker red = StartWorker("red", kRed);
  Worker blue = StartWorker("blue", kBlue);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  ASSERT_EQ(blue.Ask("connect"), "OK") << Log();
  EXPECT_EQ(red.Ask("acquire 64"), "OK");
  EXPECT_EQ(red.Ask("publish weights"), "OK");
  EXPECT_EQ(blue.Ask("acquire 32"), "OK");

  const pid_t first = DaemonOnNode();
  EXPECT_EQ(host_->OnNode({"kill", "-KILL", absl::StrCat(first)}).code, 0);
  ASSERT_TRUE(Eventually([&] { return Generations() == 2; })) << Log();
  EXPECT_NE(DaemonOnNode(), first);

  EXPECT_EQ(red.Ask("check"), "OK");
  EXPECT_EQ(blue.Ask("check"), "OK");
  EXPECT_EQ(blue.Ask("attach red/weights"), "OK") << Log();
  EXPECT_EQ(blue.Ask("charged"), absl::StrCat(32 * kMiB));
  EXPECT_EQ(red.Ask("charged"), absl::StrCat(64 * kMiB));
  // Their processes are still known: memory of dead ones comes back.
  EXPECT_EQ(host_->Kill("blue", "KILL").code, 0);
  EXPECT_EQ(blue.child().Wait(), 128 + SIGKILL);
  EXPECT_EQ(red.Ask("acquire 64"), "OK");
  EXPECT_TRUE(Eventually([&] { return Sessions().size() == 1; })) << Sessions();
  // The folder of the sockets shows the new ones to later clients.
  Worker late = StartWorker("late", kBlue);
  EXPECT_EQ(late.Ask("connect"), "OK");
  EXPECT_EQ(late.Ask("attach red/weights"), "OK");
}

// gpumem-keeper keeps the listening sockets.
TEST_F(ContainerTest, AMountOfTheSocketItselfLeadsToTheNextDaemon) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  ContainerSpec spec = WorkerSpec("red", kRed, 1000);
  spec.mounts.push_back(
      {absl::StrCat(host_->folder(), "/run/session.sock"), "/run/gpumem/session.sock"});
  Worker red = StartWorker(spec);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  EXPECT_EQ(host_->OnNode({"kill", "-KILL", absl::StrCat(DaemonOnNode())}).code, 0);
  ASSERT_TRUE(Eventually([&] { return Generations() == 2; })) << Log();
  EXPECT_EQ(host_->Exec("red", {Inside("gpumemctl"), "whoami"}).code, 0);
}

TEST_F(ContainerTest, PublicationsEndWithTheDaemonsPod) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  Worker red = StartWorker("red", kRed);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  EXPECT_EQ(red.Ask("acquire 64"), "OK");
  EXPECT_EQ(red.Ask("publish weights"), "OK");

  EXPECT_EQ(host_->Kill("daemon", "TERM").code, 0);
  EXPECT_EQ(daemon_.Wait(), 0) << Log();
  EXPECT_EQ(red.Ask("check"), "OK") << "what is mapped stays mapped";
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  EXPECT_EQ(red.Ask("check"), "OK");
  Worker late = StartWorker("late", kRed);
  ASSERT_EQ(late.Ask("connect"), "OK");
  EXPECT_THAT(late.Ask("attach red/weights"), StartsWith("NOT_FOUND"));
  EXPECT_EQ(late.Ask("charged"), "0") << "the new daemon knows nothing of it";
}

TEST_F(ContainerTest, TheProbesAnswer) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  EXPECT_EQ(Ctl({"status"}).code, 0) << Ctl({"status"}).output;
  const pid_t daemon = DaemonOnNode();
  EXPECT_EQ(host_->OnNode({"kill", "-STOP", absl::StrCat(daemon)}).code, 0);
  EXPECT_EQ(host_->Exec("daemon", {"/usr/bin/timeout", "2", Inside("gpumemctl"), "status"}).code,
            124);
  EXPECT_EQ(host_->OnNode({"kill", "-CONT", absl::StrCat(daemon)}).code, 0);
  EXPECT_EQ(Ctl({"status"}).code, 0);
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--worker") return gpumem::RunContainerWorker(argv[2]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
