// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/grpc_listener.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/http2_refusal.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "daemon/transport/testing/grpc_listener_fixture.h"

namespace gpumemd::listener {
namespace {

using gpumem::ConnectUnix;

TEST_P(GrpcListenerTest, ThereIsNoServerBeforeTheFirstConnection) {
  Start(kLong);
  EXPECT_EQ(started(), 0);
  for (int i = 0; i < 3; ++i) {
    const grpc::Status called = Call();
    EXPECT_TRUE(called.ok()) << called.error_message();
  }
  EXPECT_EQ(started(), 1);
}

TEST_P(GrpcListenerTest, AServerEndsWithItsConnectionsAndTheNextStartsAnother) {
  Start(absl::ZeroDuration());
  // After a server has ended, the next connection starts another, any number of times, without
  // leaking descriptors.
  const auto call_until = [&](int servers) {
    const absl::Time give_up = absl::Now() + kLong;
    while (started() < servers && absl::Now() < give_up) {
      const grpc::Status called = Call();
      EXPECT_TRUE(called.ok()) << called.error_message();
    }
    EXPECT_GE(started(), servers);
    return OpenDescriptors();
  };
  const int before = call_until(5);
  EXPECT_LT(call_until(30), before + 20);
}

TEST_P(GrpcListenerTest, AnOpenConnectionKeepsTheServer) {
  Start(absl::ZeroDuration());
  auto idle = ConnectUnix(path_, SOCK_STREAM);
  ASSERT_TRUE(idle.ok()) << idle.status();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Call().ok());
  EXPECT_EQ(started(), 1);
}

// --- Floods --------------------------------------------------------------------------------------

// Only what a test sends counts, however long it takes.
constexpr FrameBudgetOptions kFewFrames = {.max_control = 1000, .control_per_second = 0};

// A client that speaks HTTP/2 by hand (RFC 9113).
class RawClient {
 public:
  explicit RawClient(const std::string& path) {
    auto socket = ConnectUnix(path, SOCK_STREAM);
    EXPECT_TRUE(socket.ok()) << socket.status();
    if (socket.ok()) socket_ = *std::move(socket);
  }
  // Begins to speak.
  void Greet() {
    Send(absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", std::string("\0\0\0\4\0\0\0\0\0", 9)));
  }
  // Sends frames of WINDOW_UPDATE, which have no answers.
  void SendFrames(int count) {
    const std::string frame("\0\0\4\x08\0\0\0\0\0\0\0\0\1", 13);
    std::string frames;
    for (int i = 0; i < count; ++i) frames += frame;
    Send(frames);
  }
  // Returns what arrives until the daemon ends the connection; nothing if it does not.
  std::string ReadToEnd() {
    std::string all;
    while (true) {
      pollfd readable{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      if (poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kLong))) <= 0) return "";
      char bytes[4096];
      const ssize_t size = recv(socket_.get(), bytes, sizeof(bytes), 0);
      if (size <= 0) return all.empty() ? "end" : all;
      all.append(bytes, static_cast<size_t>(size));
    }
  }

 private:
  void Send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t size =
          send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (size <= 0) return;  // closed
      sent += static_cast<size_t>(size);
    }
  }

  gpumem::UniqueFd socket_;
};

// Sends too many frames in all, but few on each connection.
std::vector<RawClient> Flood(const std::string& path) {
  std::vector<RawClient> flood;
  for (int i = 0; i < 8; ++i) {
    flood.emplace_back(path).Greet();
    flood.back().SendFrames(200);
  }
  return flood;
}

TEST_P(GrpcListenerTest, AFloodOverSeveralConnectionsEndsAllOfItsUser) {
  Start(kLong, {.frames = kFewFrames, .pause = absl::Hours(1)});
  RawClient idle(path_);
  idle.Greet();
  std::vector<RawClient> flood = Flood(path_);
  ASSERT_NE(idle.ReadToEnd(), "");
  for (RawClient& client : flood) ASSERT_NE(client.ReadToEnd(), "");
  const auto refused = gpumem::ParseHttp2Refusal(RawClient(path_).ReadToEnd());
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(refused->message(), " has flooded ")) << *refused;
}

TEST_P(GrpcListenerTest, AFloodOverConnectionsThatEndIsRefusedForAMoment) {
  Start(kLong, {.frames = kFewFrames, .pause = absl::Seconds(1)});
  const absl::Time give_up = absl::Now() + kLong;
  do {
    ASSERT_LT(absl::Now(), give_up);
    RawClient client(path_);
    client.Greet();
    client.SendFrames(400);  // two such are allowed
  } while (Call().ok());
  while (!Call().ok()) ASSERT_LT(absl::Now(), give_up);
}

TEST_P(GrpcListenerTest, AFloodDoesNotEndConnectionsOfOthers) {
  if (!CanBecomeUser()) GTEST_SKIP() << kNeedsRoot;
  Start(kLong, {.frames = kFewFrames, .pause = absl::Hours(1)});
  const auto channel = ConnectAs(kOther);
  ASSERT_TRUE(CallOn(channel).ok());
  std::vector<RawClient> flood = Flood(path_);
  for (RawClient& client : flood) ASSERT_NE(client.ReadToEnd(), "");
  EXPECT_FALSE(Call().ok());
  const grpc::Status called = CallOn(channel);
  EXPECT_TRUE(called.ok()) << called.error_message();
}

TEST_P(GrpcListenerTest, NoConnectionIsServedAfterTheEnd) {
  Start(kLong);
  EXPECT_TRUE(Call().ok());
  listener_->StopAccepting();
  EXPECT_FALSE(ConnectUnix(path_, SOCK_STREAM).ok());
  listener_->Shutdown(absl::Now());
  EXPECT_EQ(started(), 1);
}

INSTANTIATE_TEST_SUITE_P(Interfaces, GrpcListenerTest, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "ByCallback" : "ByThread"; });

}  // namespace
}  // namespace gpumemd::listener
