// SPDX-License-Identifier: Apache-2.0
// Pods come and go: gpumemd has their tenants, whatever is restarted meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "gpumem/client.h"
#include "tests/kubernetes/cluster.h"
#include "tests/kubernetes/scheduler.h"
#include "tests/support/child.h"

namespace gpumem {
namespace {

using testing::Cluster;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::TestPod;

class KubeletPluginTest : public ::testing::Test {
 protected:
  void TearDown() override {
    if (cluster_ != nullptr && HasFailure()) {
      std::fputs(cluster_->PluginLog().c_str(), stderr);
      std::fputs(cluster_->daemon().Log().c_str(), stderr);
    }
  }
  void Start(const std::string& rules = "") {
    auto cluster = Cluster::Start(rules);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(KubeletPluginTest, PodsHaveTenantsWhileTheirClaimsAreReserved) {
  Start();
  ASSERT_NE(cluster_->Gpumemctl("tenant create mine --limit 64MiB --owner me"), "");
  ASSERT_NE(cluster_->Gpumemctl("tenant create pod-others --limit 64MiB"), "");
  const TestPod a{1, {{0, 512}}}, b{2, {{0, 256}, {1, 1024}}}, c{3, {{0, 512}}};
  cluster_->SetPods({a, b});
  cluster_->StartPlugin();
  EXPECT_TRUE(cluster_->WaitForTenantsOf({a, b}));
  // The scheduler gives what a had to c at once.
  cluster_->SetPods({b, c});
  EXPECT_TRUE(cluster_->WaitForTenantsOf({b, c}));
  cluster_->SetPods({});
  EXPECT_TRUE(cluster_->WaitForTenantsOf({}));
  EXPECT_EQ(cluster_->EndPlugin(), 0);
  const std::string list = cluster_->Gpumemctl("tenant list --json");
  EXPECT_THAT(list, HasSubstr("\"mine\""));
  EXPECT_THAT(list, HasSubstr("\"pod-others\""));
  EXPECT_THAT(cluster_->PluginLog(),
              HasSubstr(absl::StrCat(a.tenant(), ": make with 512.00 MiB on ", cluster_->gpu(0))));
}

TEST_F(KubeletPluginTest, APodGetsItsShareAndNoMore) {
  const TestPod pod{1, {{1, 64}}}, next{2, {{1, 1024}}};
  // In place of the pod's control group: this process is the pod.
  Start(absl::StrCat("[[rule]]\ntenant = \"", pod.tenant(), "\"\ndefault = true\nmade = true\n"));
  cluster_->SetPods({pod});
  ASSERT_EQ(cluster_->RunPluginOnce(), 0);
  auto client = cluster_->daemon().Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_EQ((*client)->tenant(), pod.tenant());
  const auto acquire = [&](int gpu, uint64_t mib) {
    return (*client)->Acquire({.bytes = mib * kMiB, .device = cluster_->gpu(gpu)});
  };
  EXPECT_TRUE(absl::IsResourceExhausted(acquire(0, 2).status())) << "not its GPU";
  auto held = acquire(1, 64);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_TRUE(absl::IsResourceExhausted(acquire(1, 2).status()));

  // The pod ends, and its process does not yet. The next one has its guarantee all the same.
  cluster_->SetPods({next});
  EXPECT_EQ(cluster_->RunPluginOnce(), 1);
  EXPECT_THAT(cluster_->PluginLog(), HasSubstr("it has ended: 64.00 MiB"));
  EXPECT_TRUE(cluster_->WaitForTenantsOf({next}));
  held = Segment();
  *client = nullptr;
  EXPECT_TRUE(Eventually([&] { return cluster_->RunPluginOnce() == 0; }));
  EXPECT_TRUE(cluster_->WaitForTenantsOf({next}));
}

// Its session may begin before the plug-in knows of it: the rule makes its tenant, and the plug-in
// takes it over.
TEST_F(KubeletPluginTest, APodThatIsEarlyGetsItsShare) {
  const auto user = static_cast<int>(getuid());
  const TestPod pod{user, {{0, 64}}};
  // In place of "pod-{pod}": the user's number is the first part of the pod's uid.
  const std::string zeros(8 - absl::StrCat(user).size(), '0');
  Start(absl::StrCat("[tenant_defaults]\nlimit = \"0\"\n[[rule]]\ntenant = \"pod-", zeros, "{uid}",
                     pod.uid().substr(8), "\"\ndefault = true\n"));
  auto client = cluster_->daemon().Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(absl::IsResourceExhausted((*client)->Acquire({.bytes = 2 * kMiB}).status()));
  cluster_->SetPods({pod});
  ASSERT_EQ(cluster_->RunPluginOnce(), 0);
  EXPECT_TRUE(cluster_->WaitForTenantsOf({pod}));
  const auto held = (*client)->Acquire({.bytes = 64 * kMiB});
  EXPECT_TRUE(held.ok()) << held.status();
}

TEST_F(KubeletPluginTest, ThePluginDoesNotWaitForItsNextRoundWhenAPodStarts) {
  Start();
  cluster_->StartPlugin("1h");
  const TestPod a{1, {{0, 512}}}, b{2, {{1, 256}}};
  ASSERT_TRUE(Eventually([&] { return !cluster_->api_server().Requests().empty(); }));
  cluster_->SetPods({a});
  EXPECT_TRUE(cluster_->WaitForTenantsOf({a}));
  cluster_->SetPods({a, b});
  EXPECT_TRUE(cluster_->WaitForTenantsOf({a, b}));
}

TEST_F(KubeletPluginTest, TenantsStayWhileAPeerIsAway) {
  Start();
  const TestPod a{1, {{0, 512}}}, b{2, {{0, 256}}}, c{3, {{1, 256}}};
  cluster_->SetPods({a, b});
  ASSERT_EQ(cluster_->RunPluginOnce(), 0);

  cluster_->StopApiServer();
  EXPECT_EQ(cluster_->RunPluginOnce(), 1);
  EXPECT_TRUE(cluster_->WaitForTenantsOf({a, b}));
  cluster_->SetPods({b, c});
  cluster_->StartApiServer();
  cluster_->StopKubelet();
  EXPECT_EQ(cluster_->RunPluginOnce(), 1);
  EXPECT_TRUE(cluster_->WaitForTenantsOf({a, b, c})) << "none ends, and new ones begin";
  cluster_->StartKubelet();
  cluster_->SetSlices(false);
  cluster_->SetPods({b});
  EXPECT_EQ(cluster_->RunPluginOnce(), 0);
  EXPECT_TRUE(cluster_->WaitForTenantsOf({b})) << "pods without a claim end, others are kept";
  cluster_->SetSlices(true);
  ASSERT_TRUE(cluster_->KillDaemon().ok());
  EXPECT_EQ(cluster_->RunPluginOnce(), 1);
  ASSERT_TRUE(cluster_->RunDaemon().ok());
  EXPECT_EQ(cluster_->RunPluginOnce(), 0);
  EXPECT_TRUE(cluster_->WaitForTenantsOf({b}));
}

TEST_F(KubeletPluginTest, APodThatWasDeletedByForceIsKeptWhileTheKubeletRunsIt) {
  Start();
  const TestPod a{1, {{0, 512}}};
  cluster_->SetPods({a});
  cluster_->StartPlugin();
  ASSERT_TRUE(cluster_->WaitForTenantsOf({a}));
  ASSERT_TRUE(cluster_->WaitForRounds(1));
  cluster_->SetPodsOfApiServer({});
  ASSERT_TRUE(cluster_->WaitForRounds(3));
  EXPECT_TRUE(cluster_->WaitForTenantsOf({a}));
  cluster_->SetPodsOfKubelet({});
  EXPECT_TRUE(cluster_->WaitForTenantsOf({}));
}

TEST_F(KubeletPluginTest, SystemdLearnsThatItIsReady) {
  Start();
  sockaddr_un address = {.sun_family = AF_UNIX};
  const std::string path = cluster_->dir() + "/notify.sock";
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  path.copy(address.sun_path, path.size());
  const UniqueFd notify(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(notify.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const timeval patience = {.tv_sec = 60};
  setsockopt(notify.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  const TestPod a{1, {{0, 512}}};
  cluster_->SetPods({a});
  cluster_->StartPlugin("50ms", path);
  std::string message(64, '\0');
  const ssize_t size = recv(notify.get(), message.data(), message.size(), 0);
  ASSERT_GT(size, 0);
  EXPECT_EQ(message.substr(0, static_cast<size_t>(size)), "READY=1");
  const auto tenants = cluster_->Tenants();
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  EXPECT_EQ(tenants->size(), 1u) << "after its first round";
}

TEST_F(KubeletPluginTest, ItEndsAlsoDuringACall) {
  Start();
  absl::Notification end;
  cluster_->kubelet().Wait(&end);
  cluster_->StartPlugin();
  ASSERT_TRUE(Eventually([&] { return cluster_->kubelet().waiting(); }));
  EXPECT_EQ(cluster_->EndPlugin(), 0);
  end.Notify();
}

// At every moment that is looked at, guarantees fit (Cluster::Tenants). In the end of each round
// each pod has what its claim says.
TEST_F(KubeletPluginTest, FiveHundredPodsSurviveRestartsOfEachPart) {
  Start();
  cluster_->StartPlugin();
  testing::Scheduler scheduler(5);
  while (scheduler.made() < 500) {
    scheduler.Change();
    const size_t part = scheduler.Below(5);
    if (part == 0) cluster_->StopApiServer();
    if (part == 1) cluster_->StopKubelet();
    if (part == 2) {
      ASSERT_TRUE(cluster_->KillDaemon().ok());
    }
    cluster_->SetPods(scheduler.pods());
    if (part == 3) cluster_->KillPlugin();
    if (part == 0) cluster_->StartApiServer();
    if (part == 1) cluster_->StartKubelet();
    if (part == 2) {
      ASSERT_TRUE(cluster_->RunDaemon().ok());
    }
    if (part == 3) cluster_->StartPlugin();
    ASSERT_TRUE(cluster_->WaitForTenantsOf(scheduler.pods())) << scheduler.made() << ", " << part;
  }
}

}  // namespace
}  // namespace gpumem
