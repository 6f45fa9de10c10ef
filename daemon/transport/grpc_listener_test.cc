// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/grpc_listener.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/http2_refusal.h"
#include "common/unix_channel.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumemd {
namespace {

using gpumem::ConnectUnix;

constexpr absl::Duration kLong = absl::Seconds(30);

// Of both interfaces, as the daemon's are.
class ByCallback : public gpumem::v1::Broker::CallbackService {
 public:
  grpc::ServerUnaryReactor* WhoAmI(grpc::CallbackServerContext* context,
                                   const gpumem::v1::WhoAmIRequest*,
                                   gpumem::v1::WhoAmIResponse*) override {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};
class ByThread : public gpumem::v1::Broker::Service {
 public:
  grpc::Status WhoAmI(grpc::ServerContext*, const gpumem::v1::WhoAmIRequest*,
                      gpumem::v1::WhoAmIResponse*) override {
    return grpc::Status::OK;
  }
  // Ends after LetUsagesEnd() only, also if the client has gone. So gRPC does not close its
  // connection before.
  grpc::Status GetUsage(grpc::ServerContext* context, const gpumem::v1::GetUsageRequest*,
                        gpumem::v1::GetUsageResponse*) override {
    Count(usages_);
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    Count(cancelled_usages_);
    may_end_.WaitForNotification();
    return grpc::Status::OK;
  }
  void LetUsagesEnd() { may_end_.Notify(); }
  // True once exactly so many calls have begun, or were cancelled; false if that takes too long.
  bool Usages(int count) { return Reaches(usages_, count); }
  bool CancelledUsages(int count) { return Reaches(cancelled_usages_, count); }

 private:
  void Count(int& calls) {
    absl::MutexLock lock(&mutex_);
    ++calls;
  }
  bool Reaches(const int& calls, int count) {
    const auto reached = [&] { return calls == count; };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), kLong);
  }

  absl::Mutex mutex_;
  int usages_ = 0, cancelled_usages_ = 0;  // under the mutex
  absl::Notification may_end_;
};

int OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

grpc::Status CallOn(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kLong));
  gpumem::v1::WhoAmIResponse response;
  return gpumem::v1::Broker::NewStub(channel)->WhoAmI(&context, {}, &response);
}

class GrpcListenerTest : public ::testing::TestWithParam<bool> {
 protected:
  GrpcListenerTest() {
    char folder[] = "/tmp/gpumem-test-XXXXXX";
    folder_ = mkdtemp(folder);
    path_ = folder_ + "/api.sock";
  }
  ~GrpcListenerTest() override {
    listener_.reset();
    unlink(path_.c_str());
    rmdir(folder_.c_str());
  }
  void Start(absl::Duration linger, ConnectedUsersOptions users = {}) {
    auto socket = gpumem::ListenUnix(path_, SOCK_STREAM, 0600);
    ASSERT_TRUE(socket.ok()) << socket.status();
    listener_ = std::make_unique<GrpcListener>(
        *std::move(socket),
        [this](grpc::ServerBuilder& builder) {
          builder.RegisterService(GetParam() ? static_cast<grpc::Service*>(&by_callback_)
                                             : &by_thread_);
        },
        [this](grpc::Server&) {
          absl::MutexLock lock(&mutex_);
          ++started_;
        },
        GrpcListenerOptions{.users = users, .linger = linger});
    listener_->Start();
  }
  grpc::Status Call() {
    // A separate channel, since channels to one address share their connection.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    auto channel = grpc::CreateCustomChannel(absl::StrCat("unix:", path_),
                                             grpc::InsecureChannelCredentials(), arguments);
    return CallOn(channel);
  }
  int started() {
    absl::MutexLock lock(&mutex_);
    return started_;
  }

  std::string folder_, path_;
  ByCallback by_callback_;
  ByThread by_thread_;
  absl::Mutex mutex_;
  int started_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<GrpcListener> listener_;
};

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

// Changes the uid of the calling thread alone (setresuid(2)). False if it may not.
bool BecomeUser(uid_t uid) { return syscall(SYS_setresuid, -1, uid, -1) == 0; }

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
  constexpr uid_t kOther = 1'000'000'000;
  if (geteuid() != 0 || !BecomeUser(kOther) || !BecomeUser(0)) {
    GTEST_SKIP() << "a second user takes root, outside of a user namespace";
  }
  Start(kLong, {.frames = kFewFrames, .pause = absl::Hours(1)});
  chmod(folder_.c_str(), 0755);
  chmod(path_.c_str(), 0666);
  ASSERT_TRUE(BecomeUser(kOther));
  auto others = ConnectUnix(path_, SOCK_STREAM);
  ASSERT_TRUE(BecomeUser(0));
  ASSERT_TRUE(others.ok()) << others.status();
  const auto channel = grpc::CreateInsecureChannelFromFd("gpumemd", others->release());
  EXPECT_TRUE(CallOn(channel).ok());
  std::vector<RawClient> flood = Flood(path_);
  for (RawClient& client : flood) ASSERT_NE(client.ReadToEnd(), "");
  EXPECT_FALSE(Call().ok());
  const grpc::Status called = CallOn(channel);
  EXPECT_TRUE(called.ok()) << called.error_message();
}

// --- Ends ----------------------------------------------------------------------------------------

// A connection with two calls of GetUsage.
class Line {
 public:
  explicit Line(const std::string& path) {
    auto socket = ConnectUnix(path, SOCK_STREAM);
    EXPECT_TRUE(socket.ok()) << socket.status();
    if (!socket.ok()) return;
    socket_.reset(fcntl(socket->get(), F_DUPFD_CLOEXEC, 0));
    fcntl(socket->get(), F_SETFL, O_NONBLOCK);
    const auto stub = gpumem::v1::Broker::NewStub(
        grpc::CreateInsecureChannelFromFd("gpumemd", socket->release()));
    for (Call& call : calls_) {
      call.reader = stub->AsyncGetUsage(&call.context, {}, &queue_);
      call.reader->Finish(&call.response, &call.status, nullptr);
    }
  }
  ~Line() {
    HangUp();
    for (size_t i = 0; i < std::size(calls_); ++i) {
      void* tag;
      bool ok;
      queue_.Next(&tag, &ok);
    }
  }
  void HangUp() { shutdown(socket_.get(), SHUT_RDWR); }

 private:
  struct Call {
    grpc::ClientContext context;
    gpumem::v1::GetUsageResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<gpumem::v1::GetUsageResponse>> reader;
  };

  gpumem::UniqueFd socket_;
  grpc::CompletionQueue queue_;
  Call calls_[2];
};

class GrpcListenerEndsTest : public GrpcListenerTest {};
INSTANTIATE_TEST_SUITE_P(ByThread, GrpcListenerEndsTest, ::testing::Values(false));

TEST_P(GrpcListenerEndsTest, AConnectionThatIsNotClosedDelaysTheEndsOfOthersOnlyBriefly) {
  Start(kLong, {.ends = {.max_calls = 1, .patience = absl::Milliseconds(1)}});
  std::vector<std::unique_ptr<Line>> lines;
  for (int i = 0; i < 4; ++i) lines.push_back(std::make_unique<Line>(path_));
  EXPECT_TRUE(by_thread_.Usages(8));
  for (const auto& line : lines) line->HangUp();
  EXPECT_TRUE(by_thread_.CancelledUsages(8));
  by_thread_.LetUsagesEnd();
}

TEST_P(GrpcListenerEndsTest, ConnectionsOfOneUserEndInTurn) {
  Start(kLong, {.ends = {.max_calls = 1, .patience = absl::Hours(1)}});
  std::vector<std::unique_ptr<Line>> lines;
  for (int i = 0; i < 4; ++i) lines.push_back(std::make_unique<Line>(path_));
  EXPECT_TRUE(by_thread_.Usages(8));
  for (const auto& line : lines) line->HangUp();
  EXPECT_TRUE(by_thread_.CancelledUsages(2));
  // Others do not wait for them.
  EXPECT_TRUE(Call().ok());
  EXPECT_TRUE(by_thread_.CancelledUsages(2));
  by_thread_.LetUsagesEnd();
  EXPECT_TRUE(by_thread_.CancelledUsages(8));
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
}  // namespace gpumemd
