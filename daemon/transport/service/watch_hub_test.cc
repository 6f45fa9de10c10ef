// SPDX-License-Identifier: Apache-2.0
// How watches begin and end, over gRPC. tests/system tests their events on a whole daemon.
#include "daemon/transport/service/watch_hub.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "common/endpoints.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/device/host_device.h"
#include "daemon/transport/service/broker_service.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;

class WatchHubTest : public ::testing::Test {
 protected:
  struct Stream {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<v1::Event>> reader;
  };

  WatchHubTest() {
    BrokerOptions options;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = 64 << 20}));
    options.random = [] { return Secret{7}; };
    broker_ = std::make_unique<Broker>(std::move(options));
    hub_ = std::make_unique<WatchHub>(broker_.get());
    service_ = std::make_unique<BrokerService>(broker_.get(), /*sessions=*/nullptr, hub_.get());
    server_ = grpc::ServerBuilder().RegisterService(service_.get()).BuildAndStart();
    stub_ = v1::Broker::NewStub(server_->InProcessChannel({}));
    const auto session = broker_->OpenSession("t", {});
    EXPECT_TRUE(session.ok()) << session.status();
    if (session.ok()) token_.assign(session->token.begin(), session->token.end());
  }
  ~WatchHubTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    hub_->Stop();
    service_.reset();
    broker_.reset();
  }

  Stream Watch() {
    Stream stream = {std::make_unique<grpc::ClientContext>(), nullptr};
    stream.context->AddMetadata(gpumem::kTokenMetadata, token_);
    stream.context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    stream.reader = stub_->Watch(stream.context.get(), v1::WatchRequest());
    return stream;
  }
  // Reads to its end, and answers why it ended.
  static grpc::StatusCode EndOf(Stream& stream) {
    v1::Event event;
    while (stream.reader->Read(&event)) {
    }
    return stream.reader->Finish().error_code();
  }

  std::unique_ptr<Broker> broker_;
  std::unique_ptr<WatchHub> hub_;
  std::unique_ptr<BrokerService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Broker::Stub> stub_;
  std::string token_;
};

TEST_F(WatchHubTest, EachBeginsWithTheQuotaAndWhetherTheDaemonDrains) {
  for (const bool draining : {false, true}) {
    broker_->operators().SetDraining(draining);
    Stream stream = Watch();
    v1::Event event;
    ASSERT_TRUE(stream.reader->Read(&event));
    EXPECT_TRUE(event.has_quota_changed()) << event.ShortDebugString();
    ASSERT_TRUE(stream.reader->Read(&event));
    ASSERT_TRUE(event.has_draining()) << event.ShortDebugString();
    EXPECT_EQ(event.draining().draining(), draining);
    stream.context->TryCancel();
    EXPECT_EQ(EndOf(stream), grpc::StatusCode::CANCELLED);
  }
}

TEST_F(WatchHubTest, EndAllCancelsCurrentAndLaterWatches) {
  Stream before = Watch();
  v1::Event event;
  ASSERT_TRUE(before.reader->Read(&event));
  hub_->EndAll();
  EXPECT_EQ(EndOf(before), grpc::StatusCode::CANCELLED);
  Stream after = Watch();
  EXPECT_EQ(EndOf(after), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace gpumemd
