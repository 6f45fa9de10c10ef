// SPDX-License-Identifier: Apache-2.0
// How a session begins: Client::Connect against daemons that behave in different ways.
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <thread>

#include "client/testing/fake_daemon.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace connect_test {

using internal::FakeDaemon;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Connects to a daemon with this behaviour at Hello.
absl::Status ConnectStatus(std::function<bool(int socket, uint64_t session)> hello,
                           absl::Duration timeout = absl::Seconds(20)) {
  FakeDaemon daemon({.hello = std::move(hello)});
  return Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = timeout}).status();
}

v1::ServerMessage Refusal(absl::StatusCode code, const std::string& message) {
  v1::ServerMessage refusal;
  refusal.mutable_refusal()->set_code(static_cast<int>(code));
  refusal.mutable_refusal()->set_message(message);
  return refusal;
}

TEST(ConnectTest, TellsWhatTheDaemonSaid) {
  FakeDaemon daemon;
  auto client = Client::Connect({.runtime_dir = daemon.runtime_dir()});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->tenant(), "testers");
  EXPECT_EQ((*client)->rule(), "everybody");
  EXPECT_EQ((*client)->session_id(), 1u);
  EXPECT_EQ((*client)->daemon_version(), "9.9");
}

TEST(ConnectTest, HelloHasVersionNameAndTenant) {
  std::vector<v1::Hello> hellos;
  FakeDaemon daemon({.hello = [&](int socket, uint64_t session) {
    hellos.push_back(FakeDaemon::ReadHello(socket));
    FakeDaemon::Send(socket, FakeDaemon::WelcomeTo(session));
    return true;
  }});
  ASSERT_TRUE(Client::Connect({.runtime_dir = daemon.runtime_dir()}).ok());
  ASSERT_TRUE(Client::Connect(
                  {.runtime_dir = daemon.runtime_dir(), .tenant = "training", .name = "trainer-3"})
                  .ok());
  EXPECT_EQ(hellos[0].protocol_version(), kProtocolVersion);
  EXPECT_EQ(hellos[0].client_name(), program_invocation_short_name);
  EXPECT_EQ(hellos[0].tenant(), "");
  EXPECT_EQ(hellos[1].client_name(), "trainer-3");
  EXPECT_EQ(hellos[1].tenant(), "training");
}

TEST(ConnectTest, WithoutADaemonItSaysWhatToDo) {
  const absl::Status status = Client::Connect({.runtime_dir = "/tmp/no-such-folder"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/tmp/no-such-folder"), HasSubstr("start gpumemd")));
}

// Connects in a thread.
class Connecting {
 public:
  explicit Connecting(const ConnectOptions& options)
      : thread_([this, options] { status_ = Client::Connect(options).status(); }) {}
  absl::Status Join() {
    thread_.join();
    return status_;
  }

 private:
  absl::Status status_ = absl::UnknownError("not done");
  std::thread thread_;
};

TEST(ConnectTest, ADaemonThatDoesNotListenYetIsWaitedFor) {
  FakeDaemon daemon;
  // Its socket exists, and refuses connections.
  daemon.Crash();
  Connecting refused({.runtime_dir = daemon.runtime_dir(), .timeout = absl::Seconds(60)});
  // The other thread cannot have found a daemon by now.
  EXPECT_EQ(Client::Connect({.runtime_dir = daemon.runtime_dir(), .wait = false}).status().code(),
            absl::StatusCode::kUnavailable);
  daemon.ComeBack();
  EXPECT_EQ(refused.Join(), absl::OkStatus());
  // Its socket does not exist.
  daemon.Crash();
  ASSERT_EQ(::unlink(SocketPath(daemon.runtime_dir(), kSessionSocket).c_str()), 0);
  Connecting missing({.runtime_dir = daemon.runtime_dir(), .timeout = absl::Seconds(60)});
  EXPECT_EQ(Client::Connect({.runtime_dir = daemon.runtime_dir(), .wait = false}).status().code(),
            absl::StatusCode::kUnavailable);
  daemon.ComeBack();
  EXPECT_EQ(missing.Join(), absl::OkStatus());
}

TEST(ConnectTest, ADaemonThatNeverListensIsWaitedForUntilTheDeadline) {
  FakeDaemon daemon;
  daemon.Crash();
  const absl::Time begun = absl::Now();
  const absl::Status status =
      Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = absl::Milliseconds(300)})
          .status();
  EXPECT_GE(absl::Now() - begun, absl::Milliseconds(300));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST(ConnectTest, WithoutAWaitOrARuntimeFolderItFailsAtOnce) {
  FakeDaemon daemon;
  daemon.Crash();
  const absl::Time begun = absl::Now();
  for (const ConnectOptions& options :
       {ConnectOptions{
            .runtime_dir = daemon.runtime_dir(), .timeout = absl::Hours(1), .wait = false},
        ConnectOptions{.runtime_dir = "/tmp/no-such-folder", .timeout = absl::Hours(1)}}) {
    EXPECT_EQ(Client::Connect(options).status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_LT(absl::Now() - begun, absl::Minutes(1));
}

TEST(ConnectTest, ARefusalIsPassedOn) {
  const auto refuse = [](int socket, uint64_t) {
    FakeDaemon::ReadHello(socket);
    FakeDaemon::Send(socket, Refusal(absl::StatusCode::kPermissionDenied, "no rule for you"));
    return false;
  };
  EXPECT_EQ(ConnectStatus(refuse), absl::PermissionDeniedError("no rule for you"));
}

TEST(ConnectTest, ARefusalBeforeTheHelloIsReadIsPassedOn) {
  const auto refuse = [](int socket, uint64_t) {
    FakeDaemon::Send(socket, Refusal(absl::StatusCode::kResourceExhausted, "full"));
    return false;
  };
  EXPECT_EQ(ConnectStatus(refuse), absl::ResourceExhaustedError("full"));
}

TEST(ConnectTest, ARefusalForWantOfASessionCarriesItsDenial) {
  const absl::Status status = ConnectStatus([](int socket, uint64_t) {
    v1::ServerMessage message = Refusal(absl::StatusCode::kResourceExhausted, "too many");
    v1::Denial* denial = message.mutable_refusal()->mutable_denial();
    denial->set_cause(v1::Denial::CAUSE_MAX_SESSIONS);
    denial->set_tenant("training");
    denial->set_limit(8);
    FakeDaemon::Send(socket, message);
    return false;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::optional<Denial> denial = GetDenial(status);
  ASSERT_TRUE(denial.has_value());
  EXPECT_EQ(denial->cause, Denial::Cause::kMaxSessions);
  EXPECT_EQ(denial->tenant, "training");
  EXPECT_EQ(denial->limit, 8u);
}

TEST(ConnectTest, ARefusalIsNeverTakenForSuccess) {
  EXPECT_EQ(ConnectStatus([](int socket, uint64_t) {
              FakeDaemon::Send(socket, Refusal(absl::StatusCode::kOk, "odd"));
              return false;
            }),
            absl::UnknownError("odd"));
}

TEST(ConnectTest, AnotherVersionIsUnimplemented) {
  const absl::Status status = ConnectStatus([](int socket, uint64_t session) {
    v1::ServerMessage message = FakeDaemon::WelcomeTo(session);
    message.mutable_welcome()->set_protocol_version(9);
    FakeDaemon::Send(socket, message);
    return true;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
}

TEST(ConnectTest, AnotherProtocolIsUnimplemented) {
  EXPECT_EQ(ConnectStatus([](int socket, uint64_t) {
              return SendMessage(socket, "\xff\xff\xff", {}, absl::InfiniteFuture()).ok();
            }).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ConnectStatus([](int socket, uint64_t) {
              v1::ServerMessage message;
              message.mutable_delivery();
              FakeDaemon::Send(socket, message);
              return true;
            }).code(),
            absl::StatusCode::kUnimplemented);
}

TEST(ConnectTest, ADaemonThatDoesNotAnswerFailsAtTheDeadline) {
  const absl::Status status =
      ConnectStatus([](int, uint64_t) { return true; }, absl::Milliseconds(50));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ConnectTest, ADaemonThatHangsUpOrSaysGoodbyeIsUnavailable) {
  EXPECT_EQ(ConnectStatus([](int, uint64_t) { return false; }).code(),
            absl::StatusCode::kUnavailable);
  const absl::Status status = ConnectStatus([](int socket, uint64_t) {
    v1::ServerMessage message;
    message.mutable_goodbye()->set_reason("draining");
    FakeDaemon::Send(socket, message);
    return false;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("draining"));
}

// A daemon that dies during a Hello may have begun the session: the next one can tell by the
// number.
TEST(ConnectTest, ADaemonThatDiesIsAskedAgainForTheSameSession) {
  std::vector<v1::Hello> hellos;
  FakeDaemon daemon({.hello = [&](int socket, uint64_t session) {
    hellos.push_back(FakeDaemon::ReadHello(socket));
    if (hellos.size() == 1) return false;
    if (hellos.size() == 2) {
      v1::ServerMessage stopping;
      stopping.mutable_goodbye()->set_stopping(true);
      FakeDaemon::Send(socket, stopping);
      return false;
    }
    FakeDaemon::Send(socket, FakeDaemon::WelcomeTo(session));
    return true;
  }});
  const ConnectOptions options = {.runtime_dir = daemon.runtime_dir()};
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_EQ(hellos.size(), 3u);
  EXPECT_NE(hellos[0].connect_id(), 0u);
  EXPECT_EQ(hellos[1].connect_id(), hellos[0].connect_id());
  EXPECT_EQ(hellos[2].connect_id(), hellos[0].connect_id());
  ASSERT_TRUE(Client::Connect(options).ok());
  EXPECT_NE(hellos[3].connect_id(), hellos[0].connect_id());
}

// As while the daemon has not been told of the process's pod.
TEST(ConnectTest, ARefusalThatPassesIsTriedAgain) {
  std::vector<v1::Hello> hellos;
  size_t refusals = 3;
  bool passes = true;
  FakeDaemon daemon({.hello = [&](int socket, uint64_t session) {
    hellos.push_back(FakeDaemon::ReadHello(socket));
    if (hellos.size() > refusals) {
      FakeDaemon::Send(socket, FakeDaemon::WelcomeTo(session));
      return true;
    }
    v1::ServerMessage message;
    message.mutable_refusal()->set_code(static_cast<int>(absl::StatusCode::kUnavailable));
    message.mutable_refusal()->set_message("not yet");
    message.mutable_refusal()->set_try_again(passes);
    FakeDaemon::Send(socket, message);
    return false;
  }});
  const ConnectOptions options = {
      .runtime_dir = daemon.runtime_dir(), .reconnect = false, .wait = false};
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_EQ(hellos.size(), 4u);
  EXPECT_EQ(hellos[3].connect_id(), hellos[0].connect_id());

  refusals = SIZE_MAX;
  ConnectOptions short_options = options;
  short_options.timeout = absl::Milliseconds(200);
  const absl::Status late = Client::Connect(short_options).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(late.message()), HasSubstr("not yet"));
  // An older daemon's refusal is final.
  passes = false;
  ConnectOptions long_options = options;
  long_options.timeout = absl::Hours(1);
  EXPECT_EQ(Client::Connect(long_options).status().code(), absl::StatusCode::kUnavailable);
}

TEST(ConnectTest, ADaemonThatDiesAgainAndAgainIsGivenUp) {
  int hellos = 0;
  const auto die = [&](int socket, uint64_t) {
    FakeDaemon::ReadHello(socket);
    ++hellos;
    return false;
  };
  EXPECT_EQ(ConnectStatus(die).code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(hellos, 1);
  EXPECT_LT(hellos, 20);
  hellos = 0;
  FakeDaemon daemon({.hello = die});
  EXPECT_EQ(
      Client::Connect({.runtime_dir = daemon.runtime_dir(), .reconnect = false}).status().code(),
      absl::StatusCode::kUnavailable);
  EXPECT_EQ(hellos, 1);
}

TEST(ConnectTest, AWelcomeWithoutAConnectionIsADefect) {
  FakeDaemon daemon({.hello = [](int socket, uint64_t session) {
    FakeDaemon::ReadHello(socket);
    SendMessage(socket, FakeDaemon::WelcomeTo(session).SerializeAsString(), {},
                absl::Now() + absl::Seconds(20))
        .IgnoreError();
    return true;
  }});
  const absl::Status status = Client::Connect({.runtime_dir = daemon.runtime_dir()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
}

TEST(ConnectTest, FailedAndEndedConnectionsLeaveNoDescriptors) {
  FakeDaemon daemon;
  const ConnectOptions options = {.runtime_dir = daemon.runtime_dir()};
  ASSERT_TRUE(Client::Connect(options).ok());  // gRPC keeps some descriptors from now on
  FakeDaemon refusing({.hello = [](int, uint64_t) { return false; }});
  const size_t before = internal::OpenFds();
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(Client::Connect({.runtime_dir = refusing.runtime_dir(), .reconnect = false}).ok());
  }
  // Fewer, when gRPC's server has only now noticed that the first client is gone.
  EXPECT_LE(internal::OpenFds(), before);
}

}  // namespace connect_test
}  // namespace gpumem
