#include "daemon/transport/api_servers.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;
using gpumem::v1::Broker;

constexpr absl::Duration kLong = absl::Seconds(30);

class AnswersWhoAmI : public Broker::CallbackService {
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
    if (on_error) on_error(context->peer());
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "no such lease"));
    return reactor;
  }
  std::function<void(const std::string&)> on_error;
  // Never answered.
  grpc::ServerUnaryReactor* GetUsage(grpc::CallbackServerContext*,
                                     const gpumem::v1::GetUsageRequest*,
                                     gpumem::v1::GetUsageResponse*) override {
    class Waits : public grpc::ServerUnaryReactor {
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    return new Waits;
  }
};

// A client of the connection; `line` is for its session to keep.
struct Peer {
  explicit Peer(ApiServers::Connection connection)
      : line(std::move(connection.line)),
        stub(Broker::NewStub(
            grpc::CreateInsecureChannelFromFd("gpumemd", connection.client_end.release()))) {}
  grpc::Status Call(absl::Duration timeout = kLong) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    gpumem::v1::WhoAmIResponse response;
    return stub->WhoAmI(&context, {}, &response);
  }
  std::shared_ptr<ApiLine> line;
  std::unique_ptr<Broker::Stub> stub;
};

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
  Peer Connect(uid_t uid = 1, const std::string& tenant = "a") {
    auto connection = servers_->Connect(uid, tenant);
    EXPECT_TRUE(connection.ok()) << connection.status();
    return Peer(*std::move(connection));
  }
  static bool Ends(const UniqueFd& socket) {
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

TEST_F(ApiServersTest, SessionsOfOneUidAndTenantShareAServer) {
  Start();
  std::vector<Peer> peers;
  for (int i = 0; i < 3; ++i) peers.push_back(Connect(1, "a"));
  EXPECT_EQ(made_, 1);
  peers.push_back(Connect(2, "a"));
  peers.push_back(Connect(1, "b"));
  EXPECT_EQ(made_, 3);
  for (Peer& peer : peers) EXPECT_TRUE(peer.Call().ok());
}

TEST_F(ApiServersTest, ASessionThatEndsTakesItsConnectionAlong) {
  Start();
  auto connection = servers_->Connect(1, "a");
  ASSERT_TRUE(connection.ok()) << connection.status();
  Peer other = Connect();
  connection->line->Cut();
  EXPECT_TRUE(Ends(connection->client_end));
  EXPECT_TRUE(Eventually([&] { return connection->line->Closed(); }));
  EXPECT_TRUE(other.Call().ok());
}

TEST_F(ApiServersTest, AServerWithoutConnectionsEnds) {
  Start({.linger = absl::Milliseconds(1), .quiet_interval = absl::Milliseconds(5)});
  for (int i = 1; i <= 3; ++i) {
    Peer peer = Connect();
    EXPECT_EQ(servers_->server_count(), 1u);
    EXPECT_TRUE(peer.Call().ok());
    EXPECT_EQ(made_, i);
    peer.line->Cut();
    EXPECT_TRUE(Eventually([&] { return servers_->server_count() == 0; }));
  }
}

TEST_F(ApiServersTest, APeerThatDoesNotReadIsCut) {
  Start({.stalled_after = absl::Milliseconds(50), .quiet_interval = absl::Milliseconds(5)});
  Peer other = Connect();
  auto connection = servers_->Connect(1, "a");
  ASSERT_TRUE(connection.ok()) << connection.status();
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
  Start({.busy_interval = absl::Milliseconds(50),
         .quiet_interval = absl::Milliseconds(50),
         .max_resets = 100,
         .resets_per_second = 1,
         .first_pause = absl::Seconds(1)});
  Peer other = Connect(2, "a");
  Peer same = Connect(1, "a");
  EXPECT_TRUE(same.Call().ok());
  // As many cancelled calls as are allowed.
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now()));
    gpumem::v1::GetUsageResponse response;
    EXPECT_FALSE(same.stub->GetUsage(&context, {}, &response).ok());
  }
  EXPECT_TRUE(same.Call().ok());
  EXPECT_EQ(servers_->cuts().flooding, 0u);

  auto flooding = servers_->Connect(1, "a");
  ASSERT_TRUE(flooding.ok()) << flooding.status();
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
    return servers_->cuts().flooding > 0;
  }));
  EXPECT_EQ(servers_->cuts().flooding, 2u);
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
  Peer same = Connect();
  EXPECT_TRUE(same.Call().ok());
  Peer busy[] = {Connect(), Connect()};
  for (Peer& peer : busy) {
    // As many as one connection may have.
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
  EXPECT_EQ(servers_->cuts().flooding, 0u);
}

TEST_F(ApiServersTest, CallsThatAreAnsweredWithErrorsAreNoFlood) {
  for (const bool told : {true, false}) {
    Start({.busy_interval = absl::Milliseconds(50),
           .quiet_interval = absl::Milliseconds(50),
           .max_resets = 10,
           .resets_per_second = 1});
    service_.on_error = nullptr;
    if (told)
      service_.on_error = [this](const std::string& peer) { servers_->AnsweredWithError(peer); };
    Peer peer = Connect();
    const auto denied = [&] {
      grpc::ClientContext context;
      gpumem::v1::ShareResponse response;
      return peer.stub->Share(&context, {}, &response).error_code();
    };
    if (told) {
      for (int i = 0; i < 3000; ++i) ASSERT_EQ(denied(), grpc::StatusCode::NOT_FOUND) << i;
      EXPECT_EQ(servers_->cuts().flooding, 0u);
    } else {
      EXPECT_TRUE(Eventually([&] { return denied() != grpc::StatusCode::NOT_FOUND; }));
    }
  }
}

TEST_F(ApiServersTest, OnceItStopsItConnectsNobody) {
  Start();
  Peer peer = Connect();
  servers_->StopConnecting();
  EXPECT_EQ(servers_->Connect(1, "a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(peer.Call().ok());
  servers_->Shutdown(absl::Now());
  EXPECT_FALSE(peer.Call().ok());
}

}  // namespace
}  // namespace gpumemd
