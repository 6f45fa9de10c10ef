// SPDX-License-Identifier: Apache-2.0
// A server of generic callback methods, and calls to it.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "daemon/transport/polling/callback_queue.h"

namespace gpumemd {

// Answers each call at once, except those of "/slow" and "/long", which wait in gRPC's thread.
class EchoService final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    if (context->method() == "/slow") {
      slow_came.Notify();
      slow_may_go.WaitForNotification();
    }
    if (context->method() == "/long") {
      const LongWork work(/*watched=*/true);
      long_came.Notify();
      long_may_go.WaitForNotification();
    }
    ++answered;
    return new Reactor;
  }

  absl::Notification slow_came, slow_may_go, long_came, long_may_go;
  std::atomic<int> answered = 0;

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    Reactor() { Finish(grpc::Status::OK); }
    void OnDone() override { delete this; }
  };
};

class EchoServer : public ::testing::Test {
 protected:
  EchoServer() { Start(); }

  void Start() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(service_.get());
    server_ = builder.BuildAndStart();
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials());
  }

  grpc::Status Call(const std::string& method) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    grpc::CompletionQueue queue;
    grpc::GenericStub stub(channel_);
    auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(), &queue);
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->StartCall();
    call->Finish(&answer, &status, this);
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
    return status;
  }

  // So many clients call at a time, each so often.
  void CallAtOnce(int clients, int calls) {
    std::vector<std::thread> threads;
    for (int i = 0; i < clients; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < calls; ++j) EXPECT_TRUE(Call("/echo").ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::unique_ptr<EchoService> service_ = std::make_unique<EchoService>();
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace gpumemd
