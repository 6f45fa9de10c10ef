// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/view_service.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/audit/audit_ring.h"
#include "daemon/core/broker/broker.h"
#include "daemon/device/host_device.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;
using ::testing::HasSubstr;

const google::protobuf::ServiceDescriptor& Calls() {
  return *v1::GetStatusRequest::descriptor()->file()->pool()->FindServiceByName("gpumem.v1.Admin");
}

class ViewServiceTest : public ::testing::Test {
 protected:
  ViewServiceTest() {
    BrokerOptions options;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = 64 << 20}));
    options.random = [] { return Secret{7}; };
    broker_ = std::make_unique<Broker>(std::move(options));
    quotas_ = std::make_unique<QuotaControl>(
        broker_.get(), std::vector<DeviceInfo>(), Overrides(),
        [](const Overrides&) { return absl::InternalError("a viewer stores nothing"); });
    service_ = std::make_unique<ViewService>(
        broker_.get(), quotas_.get(),
        AdminService::Hooks{
            .fill_status = [](v1::GetStatusResponse& status) { status.set_version("9.9"); },
            .history =
                [](const v1::GetHistoryRequest&) {
                  v1::GetHistoryResponse response;
                  response.set_interval_ms(7);
                  return response;
                },
            .events = &events_,
            .pods = &pods_});
    server_ = grpc::ServerBuilder().RegisterService(service_.get()).BuildAndStart();
    channel_ = server_->InProcessChannel({});
  }
  ~ViewServiceTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

  // Calls it with these bytes for a request.
  grpc::Status Call(const std::string& name, const std::string& bytes) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    const auto call = stub.PrepareUnaryCall(&context, absl::StrCat("/gpumem.v1.Admin/", name),
                                            grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

  std::unique_ptr<Broker> broker_;
  std::unique_ptr<QuotaControl> quotas_;
  AuditRing ring_;
  EventStreams events_{&ring_};
  PodBook pods_;
  std::unique_ptr<ViewService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(ViewServiceTest, ListsCallsByNamesThatChangeNothing) {
  for (const absl::string_view name : ViewService::ServedCalls()) {
    EXPECT_NE(Calls().FindMethodByName(std::string(name)), nullptr) << name;
    EXPECT_TRUE(absl::StartsWith(name, "Get") || absl::StartsWith(name, "List") ||
                name == "WatchEvents")
        << name;
  }
}

// Also calls that are added to the protocol later.
TEST_F(ViewServiceTest, RefusesEveryCallThatIsNotListed) {
  const std::set<absl::string_view> served(ViewService::ServedCalls().begin(),
                                           ViewService::ServedCalls().end());
  int refused = 0;
  for (int i = 0; i < Calls().method_count(); ++i) {
    const std::string& name = Calls().method(i)->name();
    if (served.contains(name)) continue;
    ++refused;
    // Requests that make sense, that do not parse, and that are large.
    for (const std::string& bytes :
         {std::string(), std::string("\xff"), std::string(1 << 20, 'x')}) {
      const grpc::Status status = Call(name, bytes);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << name;
      EXPECT_THAT(status.error_message(), HasSubstr("read-only: " + name)) << name;
    }
  }
  EXPECT_GE(refused, 18);
  EXPECT_EQ(Call("Reboot", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(ViewServiceTest, ServesTheListedCalls) {
  for (const absl::string_view name : ViewService::ServedCalls()) {
    const grpc::Status status = Call(std::string(name), "\xff");
    // Its request is read.
    EXPECT_NE(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << name;
    EXPECT_FALSE(status.ok()) << name;
  }
  const auto stub = v1::Admin::NewStub(channel_);
  {
    grpc::ClientContext context;
    v1::GetStatusResponse status;
    ASSERT_TRUE(stub->GetStatus(&context, {}, &status).ok());
    EXPECT_EQ(status.version(), "9.9");
    EXPECT_EQ(status.devices_size(), 1);
  }
  {
    grpc::ClientContext context;
    v1::GetHistoryResponse history;
    ASSERT_TRUE(stub->GetHistory(&context, {}, &history).ok());
    EXPECT_EQ(history.interval_ms(), 7u);
  }
  grpc::ClientContext context;
  v1::EventRecord record;
  const auto reader = stub->WatchEvents(&context, {});
  EXPECT_FALSE(reader->Read(&record));
  EXPECT_TRUE(reader->Finish().ok());
}

// Each server of the listener registers the same service.
TEST_F(ViewServiceTest, IsRegisteredAgain) {
  server_->Shutdown(std::chrono::system_clock::now());
  server_ = grpc::ServerBuilder().RegisterService(service_.get()).BuildAndStart();
  channel_ = server_->InProcessChannel({});
  EXPECT_TRUE(Call("GetStatus", "").ok());
  EXPECT_EQ(Call("Drain", "").error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

}  // namespace
}  // namespace gpumemd
