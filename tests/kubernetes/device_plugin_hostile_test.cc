// SPDX-License-Identifier: Apache-2.0
// What a kubelet may send or do, and should not: clear errors, and nothing else is held up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
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
using testing::UnitPod;

constexpr absl::Duration kPatience = absl::Seconds(60);

class DevicePluginHostileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto node = DevicePluginNode::Start();
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
    node_->StartPlugin();
    ASSERT_TRUE(node_->WaitForUnits());
    good_ = absl::StrCat(node_->uuid(0), "/16MiB/0007");
  }
  void TearDown() override {
    if (node_ != nullptr && HasFailure()) std::fputs(node_->PluginLog().c_str(), stderr);
  }
  absl::Status Allocate(const std::vector<std::string>& ids) {
    v1beta1::AllocateRequest request;
    auto* const container = request.add_container_requests();
    for (const std::string& id : ids) container->add_devices_ids(id);
    return node_->kubelet().Allocate(request).status();
  }
  absl::Status Prefer(const std::vector<std::string>& ids, int size) {
    v1beta1::PreferredAllocationRequest request;
    auto* const container = request.add_container_requests();
    for (const std::string& id : ids) container->add_available_deviceids(id);
    container->set_allocation_size(size);
    return node_->kubelet().Prefer(request).status();
  }
  std::unique_ptr<DevicePluginNode> node_;
  std::string good_;  // the id of a unit
};

TEST_F(DevicePluginHostileTest, AllocationsThatMakeNoSenseAreRefused) {
  EXPECT_TRUE(Allocate({good_}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Allocate({good_, good_})));
  EXPECT_TRUE(absl::IsInvalidArgument(Allocate({})));
  EXPECT_TRUE(absl::IsInvalidArgument(Allocate({good_, "GPU-0"})));
  EXPECT_TRUE(absl::IsInvalidArgument(Allocate({std::string(1 << 20, '/')})));
  EXPECT_TRUE(absl::IsInvalidArgument(Allocate({std::string("\x01\n\x7f") + good_})));
  EXPECT_TRUE(absl::IsNotFound(Allocate({absl::StrCat(node_->uuid(0), "/16MiB/0064")})));
  EXPECT_TRUE(absl::IsNotFound(Allocate({absl::StrCat(node_->uuid(0), "/32MiB/0001")})));
  EXPECT_TRUE(absl::IsNotFound(Allocate({"GPU-x/16MiB/0001"})));
  const std::vector<std::string> many(300'000, good_);
  EXPECT_TRUE(absl::IsResourceExhausted(Allocate(many))) << "a message too large";
  EXPECT_TRUE(absl::IsInvalidArgument(Allocate({many.begin(), many.begin() + 100'000})));
  v1beta1::AllocateRequest containers;
  for (int i = 0; i < 1000; ++i) containers.add_container_requests()->add_devices_ids(good_);
  EXPECT_TRUE(absl::IsResourceExhausted(node_->kubelet().Allocate(containers).status()));
  EXPECT_TRUE(node_->kubelet().Allocate({}).ok()) << "nothing is asked";
}

TEST_F(DevicePluginHostileTest, WishesThatMakeNoSenseAreRefused) {
  EXPECT_TRUE(Prefer({good_}, 1).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Prefer({good_, good_}, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(Prefer({good_}, 2)));
  EXPECT_TRUE(absl::IsInvalidArgument(Prefer({good_}, 2'000'000'000)));
  EXPECT_TRUE(absl::IsInvalidArgument(Prefer({"x"}, 1)));
  EXPECT_TRUE(Prefer({good_}, -1).ok()) << "none";
  EXPECT_TRUE(node_->kubelet().PreStart({}, kPatience).ok());
  EXPECT_TRUE(node_->kubelet().PreStart({"x"}, kPatience).ok());
}

// More containers than threads wait for what does not come. Pods are admitted meanwhile: a call
// that failed for them would fail the pod for good.
TEST_F(DevicePluginHostileTest, ContainersThatWaitHoldUpNoOtherCall) {
  const UnitPod pod{1, "a", 10};
  node_->Create(pod);
  ASSERT_TRUE(node_->kubelet().Admit(pod.uid(), "team", pod.name, pod.units).ok());
  std::vector<absl::Status> statuses(250);
  std::vector<std::thread> threads;
  for (absl::Status& status : statuses) {
    threads.emplace_back(
        [&, to = &status] { *to = node_->kubelet().StartContainer(pod.uid(), absl::Seconds(15)); });
  }
  for (int i = 0; i < 100; ++i) {
    const absl::Status allocated = Allocate({good_});
    EXPECT_TRUE(allocated.ok()) << allocated;
    const absl::Status preferred = Prefer({good_}, 1);
    EXPECT_TRUE(preferred.ok()) << preferred;
  }
  node_->Acknowledge(pod);
  for (std::thread& thread : threads) thread.join();
  int started = 0;
  for (const absl::Status& status : statuses) {
    started += status.ok() ? 1 : 0;
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  }
  EXPECT_GT(started, 100);
  EXPECT_TRUE(node_->WaitForTenants());
}

// The kubelet forgets a plug-in whose list has ended.
TEST_F(DevicePluginHostileTest, AKubeletThatEndsTheListIsAskedAgain) {
  const int before = node_->kubelet().registrations();
  node_->kubelet().EndList();
  EXPECT_TRUE(Eventually([&] { return node_->kubelet().registrations() > before; }, kPatience));
  EXPECT_TRUE(node_->WaitForUnits());
}

}  // namespace
}  // namespace gpumem
