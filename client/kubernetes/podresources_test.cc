// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/podresources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/kubernetes/testing/fake_kubelet.h"

namespace gpumem::kubernetes {
namespace podresources_test {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr char kDriver[] = "gpu.nvidia.com";
constexpr absl::Duration kTimeout = absl::Minutes(1);

class PodResourcesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Not in the test's folder: names of sockets have at most 107 characters.
    char dir[] = "/tmp/gpumem-podresources-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    dir_ = dir;
    socket_ = dir_ + "/kubelet.sock";
  }
  ~PodResourcesTest() override {
    unlink(socket_.c_str());
    rmdir(dir_.c_str());
  }
  std::string dir_, socket_;
};

TEST_F(PodResourcesTest, PodsWithDevicesOfTheDriverAreListed) {
  FakeKubelet kubelet(socket_);
  ::v1::ListPodResourcesResponse answer, others;
  FakeKubelet::Add("a", "one", kDriver, &answer)->add_containers()->set_name("without");
  ::v1::PodResources* const two = FakeKubelet::Add("b", "two", kDriver, &answer);
  *two->add_containers() = FakeKubelet::Add("nic", "three", "nic.example", &others)->containers(0);
  *two->add_containers() = FakeKubelet::Add("a", "one", kDriver, &others)->containers(0);
  answer.MergeFrom(others);
  answer.mutable_pod_resources()->RemoveLast();
  answer.add_pod_resources()->set_name("plain");
  kubelet.Set(answer);
  const auto pods = ListKubeletPods(socket_, kDriver, kTimeout);
  ASSERT_TRUE(pods.ok()) << pods.status();
  ASSERT_THAT(*pods, SizeIs(2));
  EXPECT_EQ((*pods)[0].name_space, "team");
  EXPECT_EQ((*pods)[0].name, "a");
  EXPECT_THAT((*pods)[0].claims, ElementsAre("one"));
  EXPECT_EQ((*pods)[1].name, "b");
  EXPECT_THAT((*pods)[1].claims, ElementsAre("one", "two"));
}

TEST_F(PodResourcesTest, PodsWithDevicesOfAResourceAreListed) {
  FakeKubelet kubelet(socket_);
  ::v1::ListPodResourcesResponse answer;
  const auto add = [](const std::string& resource, const std::string& id,
                      ::v1::ContainerResources* container) {
    ::v1::ContainerDevices* const devices = container->add_devices();
    devices->set_resource_name(resource);
    devices->add_device_ids(id);
  };
  ::v1::PodResources* const b = FakeKubelet::Add("b", "one", kDriver, &answer);
  add("a.dev/x", "1", b->add_containers());
  ::v1::ContainerResources* const second = b->add_containers();
  // As the kubelet lists a device of two NUMA nodes.
  for (const char* id : {"2", "3", "3"}) add("a.dev/x", id, second);
  add("b.dev/x", "4", second);
  add("a.dev/x", "5", FakeKubelet::Add("a", "one", kDriver, &answer)->add_containers());
  add("b.dev/x", "6", FakeKubelet::Add("c", "one", kDriver, &answer)->add_containers());
  kubelet.Set(answer);
  const auto pods = ListDevicePods(
      socket_, [](absl::string_view resource) { return resource == "a.dev/x"; }, kTimeout);
  ASSERT_TRUE(pods.ok()) << pods.status();
  EXPECT_THAT(*pods,
              ElementsAre(DevicePod{"team", "a", {"5"}}, DevicePod{"team", "b", {"1", "2", "3"}}));
}

TEST_F(PodResourcesTest, ARestartedKubeletIsFoundAtOnce) {
  EXPECT_TRUE(absl::IsUnavailable(ListKubeletPods(socket_, kDriver, kTimeout).status()));
  for (int i = 0; i < 3; ++i) {
    {
      FakeKubelet kubelet(socket_);
      EXPECT_TRUE(ListKubeletPods(socket_, kDriver, kTimeout).ok());
    }
    EXPECT_TRUE(absl::IsUnavailable(ListKubeletPods(socket_, kDriver, kTimeout).status()));
  }
}

TEST_F(PodResourcesTest, AnswersAreBoundedInSizeAndTime) {
  absl::Notification end;
  FakeKubelet kubelet(socket_);
  ::v1::ListPodResourcesResponse answer;
  FakeKubelet::Add(std::string(17 << 20, 'a'), "one", kDriver, &answer);
  kubelet.Set(answer);
  EXPECT_TRUE(absl::IsResourceExhausted(ListKubeletPods(socket_, kDriver, kTimeout).status()));
  kubelet.Wait(&end);
  const auto late = ListKubeletPods(socket_, kDriver, absl::Milliseconds(200));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  end.Notify();
}

TEST_F(PodResourcesTest, ErrorsOfTheKubeletAreReturned) {
  FakeKubelet kubelet(socket_);
  kubelet.Refuse(grpc::Status(grpc::StatusCode::INTERNAL, "no claim info"));
  const auto pods = ListKubeletPods(socket_, kDriver, kTimeout);
  EXPECT_TRUE(absl::IsInternal(pods.status())) << pods.status();
  EXPECT_EQ(pods.status().message(), "no claim info");
}

}  // namespace podresources_test
}  // namespace gpumem::kubernetes
