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
  Start({.linger = absl::Milliseconds(1), .guard_interval = absl::Milliseconds(5)});
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
  Start({.stalled_after = absl::Milliseconds(50),
         .guard_interval = absl::Milliseconds(5),
         .frames = {.max_control = 1e9}});
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
  Start({.frames = {.max_resets = 100, .resets_per_second = 1}, .first_pause = absl::Seconds(1)});
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
  EXPECT_EQ(servers_->cuts().floods, 0u);

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
  Peer same = Connect();
  EXPECT_TRUE(same.Call().ok());
  Peer busy[] = {Connect(), Connect()};
  for (Peer& peer : busy) {
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
  Peer peer = Connect();
  for (int i = 0; i < 3000; ++i) {
    grpc::ClientContext context;
    gpumem::v1::ShareResponse response;
    const grpc::Status status = peer.stub->Share(&context, {}, &response);
    ASSERT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << i << status.error_message();
  }
}

TEST_F(ApiServersTest, LargeRequestsAndAnswersAreNoFlood) {
  Start({.frames = {.max_control = 1000, .control_per_second = 1}});
  Peer peer = Connect();
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
  std::vector<Peer> peers;
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

// So many calls of WhoAmI at once, on each of the peers.
void CallAtOnce(std::vector<Peer>& peers, int calls) {
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
  std::vector<Peer> peers;
  for (int i = 0; i < 8; ++i) peers.push_back(Connect());
  for (int i = 0; i < 20; ++i) CallAtOnce(peers, 50);
}

TEST_F(ApiServersTest, CallsThatWaitHoldUpNobodyForLong) {
  Start({.guard_interval = absl::Hours(1), .calls = {.max_calls = 4, .max_calls_alone = 4}});
  Peer waits = Connect();
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
