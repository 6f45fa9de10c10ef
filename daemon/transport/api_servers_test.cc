// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/api_servers.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/transport/testing/api_servers_fixture.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumemd {
namespace {

TEST_F(ApiServersTest, SessionsOfOneUidAndTenantShareAServer) {
  Start();
  std::vector<ApiPeer> peers;
  for (int i = 0; i < 3; ++i) peers.push_back(Connect(1, "a"));
  EXPECT_EQ(made_, 1);
  peers.push_back(Connect(2, "a"));
  peers.push_back(Connect(1, "b"));
  EXPECT_EQ(made_, 3);
  for (ApiPeer& peer : peers) EXPECT_TRUE(peer.Call().ok());
}

TEST_F(ApiServersTest, ASessionThatEndsTakesItsConnectionAlong) {
  Start();
  auto connection = servers_->Connect(1, "a");
  ASSERT_TRUE(connection.ok()) << connection.status();
  connection->serve();
  ApiPeer other = Connect();
  connection->line->Cut();
  EXPECT_TRUE(Ends(connection->client_end));
  EXPECT_TRUE(Eventually([&] { return connection->line->Closed(); }));
  EXPECT_TRUE(other.Call().ok());
}

TEST_F(ApiServersTest, ACutEndsWhateverErrorCameBefore) {
  Start();
  auto connection = servers_->Connect(1, "a");
  ASSERT_TRUE(connection.ok()) << connection.status();
  errno = EINTR;  // as it is left when the daemon was stopped and continues
  connection->line->Cut();
  EXPECT_TRUE(Ends(connection->client_end));
}

TEST_F(ApiServersTest, WhatAClientSendsBeforeItIsServedWaits) {
  Start();
  auto connection = servers_->Connect(1, "a");
  ASSERT_TRUE(connection.ok()) << connection.status();
  const auto stub = gpumem::v1::Broker::NewStub(
      grpc::CreateInsecureChannelFromFd("gpumemd", connection->client_end.release()));
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  const auto reader = stub->AsyncWhoAmI(&context, {}, &queue);
  gpumem::v1::WhoAmIResponse response;
  grpc::Status status;
  reader->Finish(&response, &status, nullptr);
  connection->serve();
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ApiServersTest, AConnectionThatIsNeverServedKeepsNoServer) {
  Start({.linger = absl::Milliseconds(1), .guard_interval = absl::Milliseconds(5)});
  auto connection = servers_->Connect(1, "a");
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_FALSE(connection->line->Closed());
  connection->serve = nullptr;
  EXPECT_TRUE(connection->line->Closed());
  connection->line->Cut();
  EXPECT_TRUE(Ends(connection->client_end));
  EXPECT_TRUE(Eventually([&] { return servers_->server_count() == 0; }));
}

TEST_F(ApiServersTest, AConnectionIsNotServedOnceTheServersHaveEnded) {
  Start();
  auto connection = servers_->Connect(1, "a");
  ASSERT_TRUE(connection.ok()) << connection.status();
  servers_->StopConnecting();
  servers_->Shutdown(absl::InfinitePast());
  connection->serve();
  EXPECT_TRUE(Ends(connection->client_end));
}

TEST_F(ApiServersTest, AServerWithoutConnectionsEnds) {
  Start({.linger = absl::Milliseconds(1), .guard_interval = absl::Milliseconds(5)});
  for (int i = 1; i <= 3; ++i) {
    ApiPeer peer = Connect();
    EXPECT_EQ(servers_->server_count(), 1u);
    EXPECT_TRUE(peer.Call().ok());
    EXPECT_EQ(made_, i);
    peer.line->Cut();
    EXPECT_TRUE(Eventually([&] { return servers_->server_count() == 0; }));
  }
}

// So many calls of WhoAmI at once, on each of the peers.
void CallAtOnce(std::vector<ApiPeer>& peers, int calls) {
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientAsyncResponseReader<gpumem::v1::WhoAmIResponse>>> readers;
  const size_t all = peers.size() * static_cast<size_t>(calls);
  std::vector<gpumem::v1::WhoAmIResponse> responses(all);
  std::vector<grpc::Status> statuses(all);
  for (size_t i = 0; i < all; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(peers[i % peers.size()].stub->AsyncWhoAmI(contexts.back().get(), {}, &queue));
    readers.back()->Finish(&responses[i], &statuses[i], nullptr);
  }
  for (size_t i = 0; i < all; ++i) {
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
  }
  for (const grpc::Status& status : statuses) EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ApiServersTest, CallsBeyondTheWindowAreAnsweredInTheirTurn) {
  // Neither time nor the guard helps those that wait.
  Start({.guard_interval = absl::Hours(1),
         .calls = {.max_calls = 4, .max_calls_alone = 4, .patience = absl::Hours(1)}});
  std::vector<ApiPeer> peers;
  for (int i = 0; i < 8; ++i) peers.push_back(Connect());
  for (int i = 0; i < 20; ++i) CallAtOnce(peers, 50);
}

TEST_F(ApiServersTest, CallsThatWaitDelayOtherCallsOnlyBriefly) {
  Start({.guard_interval = absl::Hours(1), .calls = {.max_calls = 4, .max_calls_alone = 4}});
  ApiPeer waits = Connect();
  grpc::CompletionQueue queue;
  grpc::ClientContext contexts[20];
  gpumem::v1::GetUsageResponse responses[20];
  std::unique_ptr<grpc::ClientAsyncResponseReader<gpumem::v1::GetUsageResponse>> calls[20];
  grpc::Status statuses[20];
  for (size_t i = 0; i < 20; ++i) {
    calls[i] = waits.stub->AsyncGetUsage(&contexts[i], {}, &queue);
    calls[i]->Finish(&responses[i], &statuses[i], nullptr);
  }
  EXPECT_TRUE(waits.Call().ok());
  EXPECT_TRUE(Connect().Call().ok());
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (int i = 0; i < 20; ++i) {
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
  }
  EXPECT_TRUE(waits.Call().ok());
}

TEST_F(ApiServersTest, ConnectionsWithManyCallsAllEndInTheirTurn) {
  constexpr size_t kPeers = 8, kEach = 50;
  // Neither time nor the guard helps those that wait. The window of calls has room for more: while
  // it is full a connection with an unread frame of its client is held, and so is its end.
  Start({.guard_interval = absl::Hours(1),
         .calls = {.max_calls = 2 * kPeers * kEach,
                   .max_calls_alone = 2 * kPeers * kEach,
                   .patience = absl::Hours(1)},
         .ends = {.max_calls = 10, .patience = absl::Hours(1)}});
  std::vector<ApiPeer> peers;
  grpc::CompletionQueue queue;
  std::vector<grpc::ClientContext> contexts(kPeers * kEach);
  std::vector<std::unique_ptr<grpc::ClientAsyncResponseReader<gpumem::v1::GetUsageResponse>>> calls;
  std::vector<gpumem::v1::GetUsageResponse> responses(kPeers * kEach);
  std::vector<grpc::Status> statuses(kPeers * kEach);
  for (size_t i = 0; i < kPeers; ++i) peers.push_back(Connect());
  for (size_t i = 0; i < kPeers * kEach; ++i) {
    calls.push_back(peers[i % kPeers].stub->AsyncGetUsage(&contexts[i], {}, &queue));
    calls.back()->Finish(&responses[i], &statuses[i], nullptr);
  }
  EXPECT_TRUE(Eventually([&] { return service_.usages() == kPeers * kEach; }));
  for (ApiPeer& peer : peers) peer.line->Cut();
  for (const ApiPeer& peer : peers) {
    EXPECT_TRUE(Eventually([&] { return peer.line->Closed(); }));
  }
  for (size_t i = 0; i < kPeers * kEach; ++i) {
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
  }
  for (const grpc::Status& status : statuses) EXPECT_FALSE(status.ok());
}

TEST_F(ApiServersTest, OnceItStopsItConnectsNoClient) {
  Start();
  ApiPeer peer = Connect();
  servers_->StopConnecting();
  EXPECT_EQ(servers_->Connect(1, "a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(peer.Call().ok());
  servers_->Shutdown(absl::Now());
  EXPECT_FALSE(peer.Call().ok());
}

}  // namespace
}  // namespace gpumemd
