// SPDX-License-Identifier: Apache-2.0
// The health of GPUs, as the kubelet watches it.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/kubernetes/dra/dra_health_v1alpha1.grpc.pb.h"
#include "tests/kubernetes/dra_node.h"
#include "tests/support/child.h"

namespace gpumem::testing {
namespace {

using Stub = ::v1alpha1::DRAResourceHealth::Stub;

struct Watch {
  explicit Watch(Stub* stub) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
    reader = stub->NodeWatchResources(&context, {});
  }
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<::v1alpha1::NodeWatchResourcesResponse>> reader;
};

class DraHealthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto node = DraNode::Start();
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
    ASSERT_TRUE(node_->Register().ok());
    stub_ = ::v1alpha1::DRAResourceHealth::NewStub(node_->channel());
  }
  std::unique_ptr<DraNode> node_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(DraHealthTest, EachRoundTellsTheHealthOfAllGpus) {
  Watch watch(stub_.get());
  ::v1alpha1::NodeWatchResourcesResponse response;
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(node_->driver().Publish(absl::InfiniteFuture()).ok());
    ASSERT_TRUE(watch.reader->Read(&response));
    ASSERT_EQ(response.devices_size(), 2);
    for (const auto& device : response.devices()) {
      EXPECT_EQ(device.health(), ::v1alpha1::HEALTHY) << device.message();
      EXPECT_EQ(device.device().pool_name(), "node-1");
      EXPECT_NE(device.device().device_name(), "");
      EXPECT_GT(device.health_check_timeout_seconds(), 0);
    }
  }
  // gpumemd is away: nothing is known of its GPUs.
  node_->daemon().child().Signal(SIGKILL);
  node_->daemon().child().Wait();
  EXPECT_FALSE(node_->driver().Publish(absl::InfiniteFuture()).ok());
  ASSERT_TRUE(watch.reader->Read(&response));
  ASSERT_EQ(response.devices_size(), 2);
  for (const auto& device : response.devices()) {
    EXPECT_EQ(device.health(), ::v1alpha1::UNKNOWN);
    EXPECT_NE(device.message(), "");
  }
  // The driver ends, and so does the watch.
  node_->StopDriver();
  EXPECT_FALSE(watch.reader->Read(&response));
}

TEST_F(DraHealthTest, WatchesAreBounded) {
  ASSERT_TRUE(node_->driver().Publish(absl::InfiniteFuture()).ok());
  std::vector<std::unique_ptr<Watch>> watches;
  ::v1alpha1::NodeWatchResourcesResponse response;
  for (int i = 0; i < 4; ++i) {
    watches.push_back(std::make_unique<Watch>(stub_.get()));
    ASSERT_TRUE(watches.back()->reader->Read(&response)) << i;
  }
  Watch other(stub_.get());
  EXPECT_FALSE(other.reader->Read(&response));
  EXPECT_EQ(other.reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  watches.front()->context.TryCancel();
  EXPECT_TRUE(Eventually([&] {
    Watch next(stub_.get());
    return next.reader->Read(&response);
  }));
}

}  // namespace
}  // namespace gpumem::testing
