// SPDX-License-Identifier: Apache-2.0
// Pods of the driver gpumem.dev come and go: each has what its claim says, whatever is killed
// meanwhile, and nothing of them stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "client/kubernetes/testing/fake_kubelet.h"
#include "tests/kubernetes/dra_node.h"
#include "tests/kubernetes/scheduler.h"
#include "tests/support/child.h"

namespace gpumem::testing {
namespace {

using kubernetes::ClaimName;
using kubernetes::FakeKubelet;

constexpr absl::Duration kPatience = absl::Seconds(60);

std::string UuidOf(int gpu) {
  return absl::StrFormat("HOST-%08d-0000-0000-0000-000000000000", gpu);
}
std::string DeviceOf(int gpu) {
  return absl::StrFormat("host-%08d-0000-0000-0000-000000000000", gpu);
}
ClaimName ClaimOf(const TestPod& pod) {
  return {"team", absl::StrCat("claim-", pod.number),
          absl::StrFormat("%08d-cccc-45ad-af94-d91eb81a87e9", pod.number)};
}

class DraPodsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto node = DraNode::Start();
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
    RestartKubelet();
    RunDriver();
    ASSERT_TRUE(Eventually([&] { return node_->Register().ok(); }, kPatience));
  }
  void RunDriver() { driver_ = node_->RunProgram(socket()); }
  void KillDriver() {
    driver_.Signal(SIGKILL);
    driver_.Wait();
  }
  std::string socket() const { return node_->dir() + "/kubelet.sock"; }
  void RestartKubelet() {
    absl::MutexLock lock(&mutex_);
    kubelet_ = nullptr;
    kubelet_ = std::make_unique<FakeKubelet>(socket());
    kubelet_->Set(listed_);
  }

  // What the API server has.
  void SetPods(const std::vector<TestPod>& pods) {
    std::vector<std::string> claims;
    for (const TestPod& pod : pods) {
      std::map<std::string, uint64_t> mib;
      for (const auto& [gpu, amount] : pod.mib) mib[DeviceOf(gpu)] = amount;
      claims.push_back(ClaimText(ClaimOf(pod), mib, absl::StrCat("pod-", pod.number), pod.uid()));
    }
    node_->store().SetClaims(claims);
  }
  // What the kubelet lists.
  void ListPods(const std::vector<TestPod>& pods) {
    ::v1::ListPodResourcesResponse answer;
    for (const TestPod& pod : pods) {
      FakeKubelet::Add(absl::StrCat("pod-", pod.number), ClaimOf(pod).name, "gpumem.dev", &answer);
    }
    absl::MutexLock lock(&mutex_);
    listed_ = answer;
    kubelet_->Set(std::move(answer));
  }

  // Repeats a call as the kubelet does. It registers a driver that has come back.
  bool Repeat(const std::function<absl::Status()>& call) {
    return Eventually(
        [&] {
          const absl::Status called = call();
          // A restarted driver is another one to connect to.
          if (!called.ok() && !absl::IsFailedPrecondition(called)) (void)node_->Register();
          return called.ok();
        },
        kPatience);
  }
  // Has the kubelet prepare the pods' claims.
  bool PrepareAll(const std::vector<TestPod>& pods) {
    return std::all_of(pods.begin(), pods.end(), [&](const TestPod& pod) {
      return Repeat([&] { return node_->Prepare(ClaimOf(pod)).status(); });
    });
  }
  bool UnprepareAll(const std::vector<TestPod>& pods) {
    return std::all_of(pods.begin(), pods.end(), [&](const TestPod& pod) {
      return Repeat([&] { return node_->Unprepare(ClaimOf(pod)); });
    });
  }

  // True if guarantees have fitted at all moments until the tenants are those of the pods.
  bool WaitForTenantsOf(const std::vector<TestPod>& pods) {
    std::map<std::string, std::map<std::string, uint64_t>> wanted;
    for (const TestPod& pod : pods) {
      for (const auto& [gpu, mib] : pod.mib) wanted[pod.tenant()][UuidOf(gpu)] = mib;
    }
    bool wrong = false;
    const bool reached = Eventually(
        [&] {
          const auto tenants = node_->Tenants();
          wrong |= absl::IsInternal(tenants.status());
          return wrong || (tenants.ok() && *tenants == wanted);
        },
        kPatience);
    return reached && !wrong;
  }
  void ExpectFilesOf(const std::vector<TestPod>& pods) const {
    std::set<std::string> wanted, found;
    for (const TestPod& pod : pods) wanted.insert(node_->CdiFile(ClaimOf(pod).uid));
    for (const auto& entry : std::filesystem::directory_iterator(node_->dir() + "/cdi")) {
      found.insert(entry.path());
    }
    EXPECT_EQ(found, wanted);
  }

  std::unique_ptr<DraNode> node_;
  absl::Mutex mutex_;
  std::unique_ptr<FakeKubelet> kubelet_ ABSL_GUARDED_BY(mutex_);
  ::v1::ListPodResourcesResponse listed_ ABSL_GUARDED_BY(mutex_);
  Child driver_;
};

// Returns the pods of `a` that are not in `b`.
std::vector<TestPod> Without(const std::vector<TestPod>& a, const std::vector<TestPod>& b) {
  std::vector<TestPod> rest;
  for (const TestPod& pod : a) {
    const bool there = std::any_of(
        b.begin(), b.end(), [&](const TestPod& other) { return other.number == pod.number; });
    if (!there) rest.push_back(pod);
  }
  return rest;
}

TEST_F(DraPodsTest, FiveHundredPodsSurviveKillsOfEachPart) {
  Scheduler scheduler(6);
  std::vector<TestPod> before;
  while (scheduler.made() < 500) {
    scheduler.Change();
    const std::vector<TestPod>& pods = scheduler.pods();
    const size_t part = scheduler.Below(5);
    const std::vector<TestPod> gone = Without(before, pods), fresh = Without(pods, before);
    // The kubelet ends pods and starts others, while a part is killed.
    bool prepared = false;
    absl::Notification done;
    std::thread kubelet([&] {
      if (UnprepareAll(gone)) {
        ListPods(Without(before, gone));
        SetPods(pods);
        prepared = PrepareAll(fresh);
      }
      done.Notify();
    });
    switch (part) {
      case 0:
        node_->StopApiServer();
        node_->StartApiServer();
        break;
      case 1:
        RestartKubelet();
        break;
      case 2:
        EXPECT_TRUE(node_->KillAndRunDaemon().ok());
        break;
      case 3:
        KillDriver();
        RunDriver();
        break;
      default:
        break;
    }
    do {
      const auto tenants = node_->Tenants();
      EXPECT_FALSE(absl::IsInternal(tenants.status())) << tenants.status();
    } while (!done.WaitForNotificationWithTimeout(absl::Milliseconds(5)));
    kubelet.join();
    ASSERT_TRUE(prepared) << scheduler.made() << ", " << part;
    ListPods(pods);
    ASSERT_TRUE(WaitForTenantsOf(pods)) << scheduler.made() << ", " << part;
    ExpectFilesOf(pods);
    ASSERT_FALSE(HasFailure()) << scheduler.made() << ", " << part;
    before = pods;
  }
  ASSERT_TRUE(UnprepareAll(before));
  SetPods({});
  ListPods({});
  EXPECT_TRUE(WaitForTenantsOf({}));
  ExpectFilesOf({});
}

TEST_F(DraPodsTest, ARebootLeavesNothingStale) {
  const TestPod stays{1, {{0, 512}}}, goes{2, {{0, 512}, {1, 100}}}, comes{3, {{0, 512}}};
  SetPods({stays, goes});
  ASSERT_TRUE(PrepareAll({stays, goes}));
  ListPods({stays, goes});
  ASSERT_TRUE(WaitForTenantsOf({stays, goes}));

  KillDriver();
  ListPods({});
  ASSERT_TRUE(node_->Reboot().ok());
  // While the node was away, its pod was deleted, and the scheduler has given the memory to
  // another.
  SetPods({stays, comes});
  RunDriver();
  ASSERT_TRUE(Eventually([&] { return node_->Register().ok(); }, kPatience));
  // The kubelet knows from its files that claims were prepared, and prepares those that it needs
  // again.
  ASSERT_TRUE(UnprepareAll({goes}));
  ASSERT_TRUE(PrepareAll({stays, comes}));
  ListPods({stays, comes});
  EXPECT_TRUE(WaitForTenantsOf({stays, comes}));
  ExpectFilesOf({stays, comes});
}

TEST_F(DraPodsTest, FilesThatNoKubeletKnowsAreRemoved) {
  const TestPod stays{1, {{0, 512}}}, goes{2, {{0, 256}}};
  SetPods({stays, goes});
  ASSERT_TRUE(PrepareAll({stays, goes}));
  ListPods({stays, goes});
  ASSERT_TRUE(WaitForTenantsOf({stays, goes}));
  // The kubelet has lost its files, and the folder of CDI files is on a disk.
  KillDriver();
  ListPods({stays});
  SetPods({stays});
  RunDriver();
  EXPECT_TRUE(Eventually(
      [&] { return !std::filesystem::exists(node_->CdiFile(ClaimOf(goes).uid)); }, kPatience));
  EXPECT_TRUE(WaitForTenantsOf({stays}));
  ExpectFilesOf({stays});
}

}  // namespace
}  // namespace gpumem::testing
