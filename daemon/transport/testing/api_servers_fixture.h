// SPDX-License-Identifier: Apache-2.0
// Shared parts of this folder's tests: servers with a service, and clients of their connections.
#pragma once

#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "daemon/transport/api_servers.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumemd {

inline constexpr absl::Duration kLong = absl::Seconds(30);

class AnswersWhoAmI : public gpumem::v1::Broker::CallbackService {
 public:
  grpc::ServerUnaryReactor* WhoAmI(grpc::CallbackServerContext* context,
                                   const gpumem::v1::WhoAmIRequest*,
                                   gpumem::v1::WhoAmIResponse*) override {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Share(grpc::CallbackServerContext* context,
                                  const gpumem::v1::ShareRequest*,
                                  gpumem::v1::ShareResponse*) override {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "no such lease"));
    return reactor;
  }
  grpc::ServerUnaryReactor* Publish(grpc::CallbackServerContext* context,
                                    const gpumem::v1::PublishRequest*,
                                    gpumem::v1::PublishResponse*) override {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Attach(grpc::CallbackServerContext* context,
                                   const gpumem::v1::AttachRequest*,
                                   gpumem::v1::AttachResponse* response) override {
    response->set_metadata(std::string(size_t{1} << 20, 'x'));
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  // Never answered.
  grpc::ServerUnaryReactor* GetUsage(grpc::CallbackServerContext*,
                                     const gpumem::v1::GetUsageRequest*,
                                     gpumem::v1::GetUsageResponse*) override {
    class Waits : public grpc::ServerUnaryReactor {
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    ++usages_;
    return new Waits;
  }
  // Returns the number of calls of GetUsage so far.
  size_t usages() const { return usages_; }

 private:
  std::atomic<size_t> usages_ = 0;
};

// A client of the connection; `line` is for its session to keep.
struct ApiPeer {
  explicit ApiPeer(ApiServers::Connection connection)
      : line(std::move(connection.line)),
        stub(gpumem::v1::Broker::NewStub(
            grpc::CreateInsecureChannelFromFd("gpumemd", connection.client_end.release()))) {
    connection.serve();
  }
  grpc::Status Call(absl::Duration timeout = kLong) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    gpumem::v1::WhoAmIResponse response;
    return stub->WhoAmI(&context, {}, &response);
  }
  std::shared_ptr<ApiLine> line;
  std::unique_ptr<gpumem::v1::Broker::Stub> stub;
};

class ApiServersTest : public ::testing::Test {
 protected:
  void Start(ApiServersOptions options = {}) {
    servers_ = std::make_unique<ApiServers>(
        [this](grpc::ServerBuilder& builder) {
          ++made_;
          builder.RegisterService(&service_);
        },
        options);
  }
  ApiPeer Connect(uid_t uid = 1, const std::string& tenant = "a") {
    auto connection = servers_->Connect(uid, tenant);
    EXPECT_TRUE(connection.ok()) << connection.status();
    return ApiPeer(*std::move(connection));
  }
  static bool Ends(const gpumem::UniqueFd& socket) {
    pollfd end{.fd = socket.get(), .events = POLLRDHUP, .revents = 0};
    return poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(kLong))) > 0;
  }
  static bool Eventually(const std::function<bool()>& holds) {
    const absl::Time deadline = absl::Now() + kLong;
    while (!holds()) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return true;
  }

  AnswersWhoAmI service_;
  std::atomic<int> made_ = 0;
  std::unique_ptr<ApiServers> servers_;
};

}  // namespace gpumemd
