// SPDX-License-Identifier: Apache-2.0
// What a peer may send before its connection is cut, and what does not count as a flood.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/transport/api_servers.h"
#include "daemon/transport/testing/api_servers_fixture.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumemd {
namespace {

// HTTP/2 by hand (RFC 9113).
std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}
std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return absl::StrCat(BigEndian(static_cast<uint32_t>(payload.size()), 3), BigEndian(type, 1),
                      BigEndian(flags, 1), BigEndian(stream, 4), payload);
}
// The beginning of a call whose request does not come.
std::string HeadersOf(uint32_t stream) {
  std::string fields;
  for (const auto& [name, value] : {std::pair<std::string, std::string>(":method", "POST"),
                                    {":scheme", "http"},
                                    {":path", "/gpumem.v1.Broker/GetUsage"},
                                    {":authority", "localhost"},
                                    {"te", "trailers"},
                                    {"content-type", "application/grpc"}}) {
    absl::StrAppend(&fields, BigEndian(0, 1), BigEndian(static_cast<uint32_t>(name.size()), 1),
                    name, BigEndian(static_cast<uint32_t>(value.size()), 1), value);
  }
  return Frame(/*HEADERS*/ 1, /*END_HEADERS*/ 4, stream, fields);
}

TEST_F(ApiServersTest, APeerThatDoesNotReadIsCut) {
  Start({.stalled_after = absl::Milliseconds(50),
         .guard_interval = absl::Milliseconds(5),
         .frames = {.max_control = 1e9}});
  ApiPeer other = Connect();
  auto connection = servers_->Connect(1, "a");
  ASSERT_TRUE(connection.ok()) << connection.status();
  connection->serve();
  // Each SETTINGS is acknowledged; the acknowledgements are not read (RFC 9113, 6.5.3).
  const std::string settings("\0\0\0\x04\0\0\0\0\0", 9);
  std::string unsent = absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", settings);
  fcntl(connection->client_end.get(), F_SETFL, O_NONBLOCK);
  EXPECT_TRUE(Eventually([&] {
    while (unsent.size() < 100000) unsent += settings;
    const ssize_t sent =
        send(connection->client_end.get(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
    if (sent > 0) unsent.erase(0, static_cast<size_t>(sent));
    return servers_->cuts().stalled == 1;
  }));
  EXPECT_TRUE(Eventually([&] { return connection->line->Closed(); }));
  EXPECT_TRUE(other.Call().ok());
}

TEST_F(ApiServersTest, AFloodOfResetsEndsTheConnectionsOfItsUidAndTenant) {
  Start({.frames = {.max_resets = 100, .resets_per_second = 1}, .first_pause = absl::Seconds(1)});
  ApiPeer other = Connect(2, "a");
  ApiPeer same = Connect(1, "a");
  EXPECT_TRUE(same.Call().ok());
  // As many cancelled calls as are allowed.
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now()));
    gpumem::v1::GetUsageResponse response;
    EXPECT_FALSE(same.stub->GetUsage(&context, {}, &response).ok());
  }
  EXPECT_TRUE(same.Call().ok());
  EXPECT_EQ(servers_->cuts().floods, 0u);

  auto flooding = servers_->Connect(1, "a");
  ASSERT_TRUE(flooding.ok()) << flooding.status();
  flooding->serve();
  std::string unsent = absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frame(4, 0, 0, ""));
  uint32_t stream = 1;
  fcntl(flooding->client_end.get(), F_SETFL, O_NONBLOCK);
  EXPECT_TRUE(Eventually([&] {
    for (; unsent.size() < 100000; stream += 2) {
      unsent += HeadersOf(stream) + Frame(/*RST_STREAM*/ 3, 0, stream, BigEndian(8, 4));
    }
    const ssize_t sent =
        send(flooding->client_end.get(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
    if (sent > 0) unsent.erase(0, static_cast<size_t>(sent));
    char ignored[4096];
    while (recv(flooding->client_end.get(), ignored, sizeof(ignored), 0) > 0) {
    }
    return servers_->cuts().floods > 0;
  }));
  EXPECT_EQ(servers_->cuts().floods, 1u);
  EXPECT_FALSE(same.Call().ok());
  EXPECT_TRUE(other.Call().ok());
  // New ones are refused for a while; those of other tenants are not.
  const absl::Status refused = servers_->Connect(1, "a").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_TRUE(servers_->Connect(1, "b").ok());
  EXPECT_TRUE(Eventually([&] { return servers_->Connect(1, "a").ok(); }));
}

TEST_F(ApiServersTest, AllCallsOfATenantThatEndInOneMomentAreNoFlood) {
  Start();
  ApiPeer same = Connect();
  EXPECT_TRUE(same.Call().ok());
  ApiPeer busy[] = {Connect(), Connect()};
  for (ApiPeer& peer : busy) {
    constexpr int kCalls = 200;
    grpc::CompletionQueue queue;
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<grpc::ClientAsyncResponseReader<gpumem::v1::GetUsageResponse>>>
        calls;
    gpumem::v1::GetUsageResponse responses[kCalls];
    grpc::Status statuses[kCalls];
    for (int i = 0; i < kCalls; ++i) {
      contexts.push_back(std::make_unique<grpc::ClientContext>());
      calls.push_back(peer.stub->AsyncGetUsage(contexts.back().get(), {}, &queue));
      calls.back()->Finish(&responses[i], &statuses[i], nullptr);
    }
    EXPECT_TRUE(peer.Call().ok());  // they have arrived
    for (const auto& context : contexts) context->TryCancel();
    for (int i = 0; i < kCalls; ++i) {
      void* tag;
      bool ok;
      queue.Next(&tag, &ok);
    }
  }
  // Two looks of the guard.
  const auto connects = [this] { return servers_->Connect(1, "a").ok(); };
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(same.Call().ok());
    EXPECT_TRUE(connects());
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(servers_->cuts().floods, 0u);
}

TEST_F(ApiServersTest, ManyCallsThatAreAnsweredWithErrorsAreNoFlood) {
  Start(
      {.frames = {
           .max_resets = 10, .resets_per_second = 1, .max_control = 100, .control_per_second = 1}});
  ApiPeer peer = Connect();
  for (int i = 0; i < 3000; ++i) {
    grpc::ClientContext context;
    gpumem::v1::ShareResponse response;
    const grpc::Status status = peer.stub->Share(&context, {}, &response);
    ASSERT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << i << status.error_message();
  }
}

TEST_F(ApiServersTest, LargeRequestsAndAnswersAreNoFlood) {
  Start({.frames = {.max_control = 1000, .control_per_second = 1}});
  ApiPeer peer = Connect();
  for (int i = 0; i < 100; ++i) {
    grpc::ClientContext context;
    gpumem::v1::PublishRequest request;
    request.set_metadata(std::string(size_t{1} << 20, 'x'));
    gpumem::v1::PublishResponse response;
    const grpc::Status status = peer.stub->Publish(&context, request, &response);
    ASSERT_TRUE(status.ok()) << i << status.error_message();
  }
  for (int i = 0; i < 100; ++i) {
    grpc::ClientContext context;
    gpumem::v1::AttachResponse response;
    const grpc::Status status = peer.stub->Attach(&context, {}, &response);
    ASSERT_TRUE(status.ok()) << i << status.error_message();
  }
}

TEST_F(ApiServersTest, ManyLargeRequestsAtOneTimeAreNoFlood) {
  Start();
  constexpr int kPeers = 64;
  std::vector<ApiPeer> peers;
  for (int i = 0; i < kPeers; ++i) peers.push_back(Connect());
  gpumem::v1::PublishRequest request;
  request.set_metadata(std::string(size_t{1} << 20, 'x'));
  for (int round = 0; round < 3; ++round) {
    grpc::CompletionQueue queue;
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<grpc::ClientAsyncResponseReader<gpumem::v1::PublishResponse>>>
        calls;
    std::vector<gpumem::v1::PublishResponse> responses(kPeers);
    std::vector<grpc::Status> statuses(kPeers);
    for (size_t i = 0; i < kPeers; ++i) {
      contexts.push_back(std::make_unique<grpc::ClientContext>());
      calls.push_back(peers[i].stub->AsyncPublish(contexts.back().get(), request, &queue));
      calls.back()->Finish(&responses[i], &statuses[i], nullptr);
    }
    for (int i = 0; i < kPeers; ++i) {
      void* tag;
      bool ok;
      queue.Next(&tag, &ok);
    }
  }
  EXPECT_EQ(servers_->cuts().floods, 0u);
  EXPECT_TRUE(servers_->Connect(1, "a").ok());
}

TEST_F(ApiServersTest, AFloodOfFramesIsCutAtTheFrameThatIsTooMuch) {
  // The guard looks too late to cut it; the reads themselves end it.
  Start(
      {.guard_interval = absl::Hours(1), .frames = {.max_control = 5000, .control_per_second = 0}});
  auto other = servers_->Connect(1, "a");
  auto flooding = servers_->Connect(1, "a");
  ASSERT_TRUE(flooding.ok() && other.ok());
  other->serve();
  flooding->serve();
  const std::string settings = Frame(4, 0, 0, "");
  std::string flood = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (int i = 0; i < 20000; ++i) flood += settings;
  // Acknowledgements come until then.
  uint64_t received = 0;
  fcntl(flooding->client_end.get(), F_SETFL, O_NONBLOCK);
  EXPECT_TRUE(Eventually([&] {
    const ssize_t sent = send(flooding->client_end.get(), flood.data(), flood.size(), MSG_NOSIGNAL);
    if (sent > 0) flood.erase(0, static_cast<size_t>(sent));
    char answer[4096];
    ssize_t size;
    while ((size = recv(flooding->client_end.get(), answer, sizeof(answer), 0)) > 0) {
      received += static_cast<uint64_t>(size);
    }
    return size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }));
  EXPECT_LT(received, 6000 * settings.size());
  // The next connection finds it out.
  EXPECT_EQ(servers_->Connect(1, "a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Ends(other->client_end));
}

}  // namespace
}  // namespace gpumemd
