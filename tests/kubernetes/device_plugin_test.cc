// SPDX-License-Identifier: Apache-2.0
// Pods get units of GPUs' memory from the kubelet: gpumemd has their tenants before their
// containers start, whatever is restarted meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gpumem/client.h"
#include "tests/kubernetes/device_plugin_node.h"
#include "tests/support/child.h"

namespace gpumem {
namespace {

using testing::DevicePluginNode;
using testing::Eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using testing::UnitPod;
using ::testing::UnorderedElementsAre;

constexpr size_t kAll = testing::kUnitGpus * testing::kUnitsOfGpu;
// Long enough for an answer, also of a call that waits for what does not come.
constexpr absl::Duration kShort = absl::Seconds(5);
constexpr absl::Duration kPatience = absl::Seconds(60);

class DevicePluginTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto node = DevicePluginNode::Start();
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
  }
  void TearDown() override {
    if (node_ != nullptr && HasFailure()) {
      std::fputs(node_->PluginLog().c_str(), stderr);
      std::fputs(node_->daemon().Log().c_str(), stderr);
    }
  }
  void StartPlugin(const std::vector<std::string>& more = {}) {
    node_->StartPlugin(more);
    ASSERT_TRUE(node_->WaitForUnits());
  }
  absl::Status Admit(const UnitPod& pod) {
    return node_->kubelet().Admit(pod.uid(), "team", pod.name, pod.units).status();
  }
  // As a kubelet that is told again and again that a container cannot start.
  bool StartContainer(const UnitPod& pod) {
    return Eventually([&] { return node_->kubelet().StartContainer(pod.uid(), kPatience).ok(); },
                      kPatience);
  }
  // A pod from its creation to the start of its container.
  void Run(const UnitPod& pod) {
    node_->Create(pod);
    ASSERT_TRUE(Admit(pod).ok());
    node_->Acknowledge(pod);
    ASSERT_TRUE(StartContainer(pod)) << pod.name;
  }
  std::vector<std::string> Ids(const UnitPod& pod) {
    const auto ids = node_->kubelet().pods().at(pod.uid()).ids;
    return {ids.begin(), ids.end()};
  }
  std::unique_ptr<DevicePluginNode> node_;
};

TEST_F(DevicePluginTest, APodHasItsTenantBeforeItsContainerStarts) {
  StartPlugin();
  EXPECT_EQ(node_->kubelet().resource(), "gpumem.dev/memory-16MiB");
  const UnitPod pod{1, "a", 10};
  node_->Create(pod);
  const auto allocated = node_->kubelet().Admit(pod.uid(), "team", pod.name, pod.units);
  ASSERT_TRUE(allocated.ok()) << allocated.status();
  ASSERT_EQ(allocated->mounts_size(), 1);
  EXPECT_EQ(allocated->mounts(0).host_path(), node_->daemon().runtime_dir());
  EXPECT_EQ(allocated->mounts(0).container_path(), "/run/gpumem");
  EXPECT_TRUE(allocated->mounts(0).read_only());
  EXPECT_EQ(allocated->envs().at("GPUMEM_RUNTIME_DIR"), "/run/gpumem");
  ASSERT_EQ(allocated->cdi_devices_size(), 1);
  EXPECT_EQ(allocated->cdi_devices(0).name(), absl::StrCat("nvidia.com/gpu=", node_->uuid(0)));
  node_->Acknowledge(pod);
  const absl::Status started = node_->kubelet().StartContainer(pod.uid(), kPatience);
  EXPECT_TRUE(started.ok()) << started;
  const auto tenants = node_->Tenants();
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  EXPECT_THAT(*tenants, UnorderedElementsAre(
                            Pair(pod.tenant(), UnorderedElementsAre(Pair(node_->uuid(0), 10)))));

  node_->kubelet().Forget(pod.uid());
  node_->Delete(pod);
  EXPECT_TRUE(node_->WaitForTenants());
  EXPECT_EQ((node_->plugin().Signal(SIGTERM), node_->plugin().Wait()), 0);
}

TEST_F(DevicePluginTest, APodThatFitsOneGpuIsOnOneGpu) {
  StartPlugin();
  const UnitPod a{1, "a", 40}, b{2, "b", 60}, c{3, "c", 24}, d{4, "d", 4};
  for (const UnitPod& pod : {a, b, c, d}) Run(pod);
  const auto tenants = node_->Tenants();
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  for (const UnitPod& pod : {a, b, c, d}) EXPECT_EQ(tenants->at(pod.tenant()).size(), 1u);
  EXPECT_EQ(node_->kubelet().free(), 0u);
}

TEST_F(DevicePluginTest, APodOfSeveralGpusCanBeRefused) {
  StartPlugin({"--one-gpu", "--gpu-kind=none", "--visible-devices"});
  const UnitPod a{1, "a", 40}, b{2, "b", 40}, c{3, "c", 40}, d{4, "d", 65};
  Run(a);
  const auto allocated = node_->kubelet().Admit(b.uid(), "team", b.name, b.units);
  ASSERT_TRUE(allocated.ok()) << allocated.status();
  EXPECT_EQ(allocated->cdi_devices_size(), 0);
  EXPECT_EQ(allocated->envs().at("NVIDIA_VISIBLE_DEVICES"), node_->uuid(1));
  const absl::Status refused = Admit(c);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no GPU of this node has 40 free units"));
  node_->kubelet().Forget(a.uid());
  node_->kubelet().Forget(b.uid());
  EXPECT_TRUE(Admit(d).ok()) << "no GPU has as many";
}

TEST_F(DevicePluginTest, AKubeletThatStartsFindsThePlugin) {
  StartPlugin();
  const UnitPod a{1, "a", 10}, b{2, "b", 20};
  Run(a);
  for (int round = 0; round < 3; ++round) {
    node_->kubelet().Stop();
    node_->kubelet().Start();
    ASSERT_TRUE(node_->WaitForUnits());
  }
  Run(b);
  EXPECT_TRUE(node_->WaitForTenants());
}

TEST_F(DevicePluginTest, APluginThatStartsFindsTenantsAndKubelet) {
  StartPlugin();
  const UnitPod a{1, "a", 10}, b{2, "b", 20};
  Run(a);
  ASSERT_TRUE(node_->KillPlugin());
  node_->kubelet().Forget(a.uid());
  node_->Delete(a);
  StartPlugin();
  EXPECT_TRUE(node_->WaitForTenants()) << "the pod has ended meanwhile";
  Run(b);
}

TEST_F(DevicePluginTest, UnitsAreUnhealthyWhileGpumemdIsAway) {
  StartPlugin({"--grace", "100ms"});
  const UnitPod pod{1, "a", 10};
  Run(pod);
  ASSERT_TRUE(node_->KillDaemon().ok());
  EXPECT_TRUE(Eventually([&] { return node_->kubelet().unhealthy() == kAll; }));
  const absl::Status away = node_->kubelet().StartContainer(pod.uid(), kShort);
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  ASSERT_TRUE(node_->RunDaemon().ok());
  EXPECT_TRUE(node_->WaitForUnits());
  EXPECT_TRUE(node_->WaitForTenants());
}

TEST_F(DevicePluginTest, AShortAbsenceOfGpumemdIsNoIllness) {
  StartPlugin({"--grace", "1h"});
  ASSERT_TRUE(node_->KillDaemon().ok());
  ASSERT_TRUE(
      Eventually([&] { return node_->PluginLog().find("gpumemd: ") != std::string::npos; }));
  EXPECT_EQ(node_->kubelet().healthy(), kAll);
}

// The kubelet does not know yet that web-0 was deleted and made anew.
TEST_F(DevicePluginTest, APodGetsNothingOfAnEarlierOneOfItsName) {
  StartPlugin();
  const UnitPod first{1, "web-0", 10}, second{2, "web-0", 20};
  Run(first);
  node_->Delete(first);  // by force
  node_->Create(second);
  const size_t before = node_->requests();
  ASSERT_TRUE(Eventually([&] { return node_->requests() > before + 5; }));
  EXPECT_TRUE(node_->WaitForTenants()) << "the first has its share while the kubelet runs it";
  const absl::Status again = node_->kubelet().StartContainer(first.uid(), kShort);
  EXPECT_TRUE(absl::IsUnavailable(again)) << again;
  EXPECT_TRUE(node_->WaitForTenants());

  node_->kubelet().Forget(first.uid());
  ASSERT_TRUE(Admit(second).ok());
  node_->Acknowledge(second);
  EXPECT_TRUE(StartContainer(second));
  const auto tenants = node_->Tenants();
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  EXPECT_EQ(*tenants, node_->Wanted());
}

// A kubelet that was just started lists pods by and by.
TEST_F(DevicePluginTest, TenantsOfLivePodsStay) {
  StartPlugin();
  const UnitPod pod{1, "a", 10};
  Run(pod);
  const auto wanted = node_->Wanted();
  node_->kubelet().Forget(pod.uid());
  const size_t before = node_->requests();
  ASSERT_TRUE(Eventually([&] { return node_->requests() > before + 5; }));
  auto tenants = node_->Tenants();
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  EXPECT_EQ(*tenants, wanted);
  node_->Delete(pod);
  EXPECT_TRUE(node_->WaitForTenants());
}

TEST_F(DevicePluginTest, AContainerWaitsForItsGuarantee) {
  StartPlugin();
  ASSERT_NE(node_->Gpumemctl(absl::StrCat("tenant create other --limit 1GiB --guarantee 1GiB")),
            "");
  const UnitPod pod{1, "a", 10};
  node_->Create(pod);
  ASSERT_TRUE(Admit(pod).ok());
  node_->Acknowledge(pod);
  const absl::Status waits = node_->kubelet().StartContainer(pod.uid(), kShort);
  EXPECT_TRUE(absl::IsFailedPrecondition(waits)) << waits;
  EXPECT_THAT(std::string(waits.message()), HasSubstr("team/a: "));
  ASSERT_NE(node_->Gpumemctl("tenant end other"), "");
  EXPECT_TRUE(StartContainer(pod));
  EXPECT_TRUE(node_->WaitForTenants());
}

TEST_F(DevicePluginTest, ContainersStartAgainWithoutTheApiServer) {
  StartPlugin();
  const UnitPod old{1, "old", 10}, late{2, "late", 10};
  Run(old);
  node_->Create(late);
  ASSERT_TRUE(Admit(late).ok());
  node_->StopApiServer();
  EXPECT_TRUE(node_->kubelet().StartContainer(old.uid(), kPatience).ok());
  absl::Status unknown = node_->kubelet().StartContainer(late.uid(), kShort);
  EXPECT_TRUE(absl::IsUnavailable(unknown)) << unknown;
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("API server"));
  // A plug-in that starts now does not know which tenant is whose.
  ASSERT_TRUE(node_->KillPlugin());
  StartPlugin();
  EXPECT_TRUE(node_->kubelet().StartContainer(old.uid(), kPatience).ok());
  node_->StartApiServer();
  node_->Acknowledge(late);
  EXPECT_TRUE(StartContainer(late));
  EXPECT_TRUE(node_->WaitForTenants());
}

// Each round costs the API server a list. Many containers that wait share rounds.
TEST_F(DevicePluginTest, PodsThatStayUnknownCauseFewRounds) {
  StartPlugin();
  const UnitPod pod{1, "a", 10};
  node_->Create(pod);  // and it is never acknowledged
  ASSERT_TRUE(Admit(pod).ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] { (void)node_->kubelet().StartContainer(pod.uid(), kPatience); });
  }
  const absl::Time begin = absl::Now();
  const size_t before = node_->requests();
  ASSERT_TRUE(Eventually([&] { return node_->requests() >= before + 20; }, kPatience));
  EXPECT_GT(absl::Now() - begin, absl::Seconds(3)) << "19 pauses of 250 ms, less a late answer";
  node_->Acknowledge(pod);
  for (std::thread& thread : threads) thread.join();
}

// Its units may be those of no container that the kubelet lists.
TEST_F(DevicePluginTest, AnInitContainerIsNotHeldUp) {
  StartPlugin();
  const std::string id = absl::StrCat(node_->uuid(0), "/16MiB/0007");
  const absl::Status started = node_->kubelet().PreStart({id}, kPatience);
  EXPECT_TRUE(started.ok()) << started;
}

TEST_F(DevicePluginTest, GpumemdIsToldOfThePods) {
  node_->Create({1, "a", 10});
  const auto has = [&](size_t count) {
    const auto pods = node_->DescribedPods();
    return pods.ok() && *pods == count;
  };
  StartPlugin({"--pod-facts=api-server"});
  EXPECT_TRUE(Eventually([&] { return has(1); }, kPatience));
  ASSERT_TRUE(node_->KillPlugin());  // an earlier run's list ends
  StartPlugin();
  EXPECT_TRUE(Eventually([&] { return has(0); }, kPatience));
}

TEST_F(DevicePluginTest, ArgumentsThatMakeNoSenseAreRefused) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--step", "1.5MiB"},
                                             {"--step", "0"},
                                             {"--resource", "memory"},
                                             {"--grace", "soon"},
                                             {"--pod-facts", "all"},
                                             {"--kubelet-socket", ""},
                                             {"--runtime-dir", "run"},
                                             {"--what"}}) {
    std::vector<std::string> all = {"--node", "n", "--api-server", "https://127.0.0.1"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    EXPECT_EQ(node_->RunPlugin(all), 2) << arguments[0];
  }
  EXPECT_EQ(node_->RunPlugin({"--help"}), 0);
}

// Pods come and go, in one of the orders that a cluster has. Whatever is looked at: guarantees fit,
// and no tenant has anything but its very pod's units. In the end of each round each pod has its
// share, and nothing is left over.
TEST_F(DevicePluginTest, TwoHundredPodsSurviveRestartsOfEachPart) {
  StartPlugin();
  std::mt19937_64 random(5);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::vector<UnitPod> pods;
  std::map<std::string, std::map<std::string, int>> all;  // what each pod had, by tenant
  struct Seen {
    bool started = false;
    absl::StatusOr<std::map<std::string, std::map<std::string, int>>> tenants;
  };
  int made = 0;
  while (made < 200) {
    for (auto pod = pods.begin(); pod != pods.end();) {
      if (below(2) == 0) {
        ++pod;
        continue;
      }
      const bool by_force = below(4) == 0;
      if (by_force) node_->Delete(*pod);
      node_->kubelet().Forget(pod->uid());
      if (!by_force) node_->Delete(*pod);
      pod = pods.erase(pod);
    }
    const size_t part = below(5);
    if (part == 0) node_->StopApiServer();
    if (part == 1) {
      node_->kubelet().Stop();
      node_->kubelet().Start();
    }
    if (part == 2) {
      ASSERT_TRUE(node_->KillDaemon().ok());
      ASSERT_TRUE(node_->RunDaemon().ok());
    }
    if (part == 3) {
      ASSERT_TRUE(node_->KillPlugin());
      node_->StartPlugin();
    }
    ASSERT_TRUE(node_->WaitForUnits());
    std::vector<UnitPod> started;
    for (size_t n = 5 + below(15); n > 0; --n) {
      const size_t free = node_->kubelet().free();
      // Names are those of earlier pods.
      UnitPod pod{made + 1, absl::StrCat("web-", below(30)), static_cast<int>(1 + below(12))};
      bool taken = static_cast<size_t>(pod.units) > free;
      for (const UnitPod& other : pods) taken |= other.name == pod.name;
      if (taken) continue;
      ++made;
      node_->Create(pod);
      const absl::Status admitted = Admit(pod);
      ASSERT_TRUE(admitted.ok()) << admitted;
      pods.push_back(pod);
      started.push_back(pod);
    }
    if (part == 0) node_->StartApiServer();
    for (const auto& [tenant, units] : node_->Wanted()) all[tenant] = units;
    // The kubelet does not wait for the API server, and starts pods side by side.
    for (const UnitPod& pod : started) node_->Acknowledge(pod);
    std::vector<Seen> seen(started.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < started.size(); ++i) {
      threads.emplace_back([&, pod = started[i], to = &seen[i]] {
        to->started = StartContainer(pod);
        to->tenants = node_->Tenants();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < started.size(); ++i) {
      ASSERT_TRUE(seen[i].started) << made << ", " << part;
      const auto& tenants = seen[i].tenants;
      ASSERT_TRUE(tenants.ok()) << tenants.status();
      ASSERT_TRUE(tenants->contains(started[i].tenant())) << "before its container starts";
      for (const auto& [tenant, units] : *tenants) ASSERT_EQ(units, all[tenant]) << tenant;
    }
    ASSERT_TRUE(node_->WaitForTenants()) << made << ", " << part;
  }
  for (const UnitPod& pod : pods) {
    node_->kubelet().Forget(pod.uid());
    node_->Delete(pod);
  }
  EXPECT_TRUE(node_->WaitForTenants());
  EXPECT_THAT(node_->Wanted(), IsEmpty());
}

}  // namespace
}  // namespace gpumem
