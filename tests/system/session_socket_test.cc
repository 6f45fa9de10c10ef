// SPDX-License-Identifier: Apache-2.0
// Silent, deaf and too many clients of the session socket, and processes that are not what they
// seem: nothing leaks, and no other client is disturbed (the fixture checks,
// tests/support/attack.h). session_hello_test.cc has bad messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"
#include "tests/support/attack.h"
#include "tests/support/child.h"
#include "tests/support/expect_denial.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::AttackTest;
using testing::Child;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::HelloOf;
using testing::kAnswerTime;
using ::testing::Not;
using testing::WireSession;

class SessionSocket : public AttackTest {
 protected:
  Child Self(std::vector<std::string> args) {
    args.insert(args.begin(), {"--role"});
    args.push_back(daemon_->Socket("session.sock"));
    return Child::Self(std::move(args));
  }
  static std::string HearFrom(const Child& child) {
    auto message = ReceiveMessage(child.channel(), absl::Now() + kAnswerTime);
    return message.ok() ? message->bytes : message.status().ToString();
  }
};

// --- Silence and floods --------------------------------------------------------------

TEST_F(SessionSocket, ASilentClientIsDroppedInTime) {
  WireSession silent = Connect();
  const absl::Time begin = absl::Now();
  EXPECT_STATUS(silent.Answer(), kDeadlineExceeded, "no Hello within 5s");
  EXPECT_GE(absl::Now() - begin, absl::Seconds(4));
  EXPECT_LE(absl::Now() - begin, absl::Seconds(10));
  EXPECT_TRUE(silent.Ended());
}

// Has no assertion: TearDown fails if a session, a byte or a descriptor is left.
TEST_F(SessionSocket, ClientsThatConnectAndCloseLeaveNothing) {
  const std::string hello = HelloOf("bad").SerializeAsString();
  for (int i = 0; i < 300; ++i) {
    WireSession session = Connect();
    if (i % 3 == 1) session.Send(hello).IgnoreError();  // gone before it is welcomed
    if (i % 3 == 2) session.Send(hello, {session.fd()}).IgnoreError();
  }
}

TEST_F(SessionSocket, TwoThousandSilentClientsKeepNoOtherOut) {
  std::vector<WireSession> silent;
  for (int i = 0; i < 2000; ++i) silent.push_back(Connect());
  WireSession session = Session();
  ExpectBystanderWorks();
  // The first had to make room for the last, and was told.
  EXPECT_STATUS(silent[0].Answer(), kResourceExhausted, "have not sent Hello");
}

TEST_F(SessionSocket, ClientsThatSayHelloAreWelcomedAmongManySilentOnes) {
  std::vector<WireSession> many;
  const std::string hello = HelloOf("bad").SerializeAsString();
  for (int i = 0; i < 1000; ++i) {
    many.push_back(Connect());
    if (i % 5 == 0) {
      ASSERT_TRUE(many.back().Send(hello).ok());
    }
  }
  for (size_t i = 0; i < many.size(); i += 5) EXPECT_OK(many[i].Answer()) << i;
}

TEST_F(SessionSocket, SessionsAreCountedAndTheOneTooManyIsRefused) {
  auto daemon = testing::DaemonProcess::Start({.config = R"(
[tenant_defaults]
max_sessions = 3
)"});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  std::vector<WireSession> sessions;
  for (int i = 0; i < 4; ++i) sessions.emplace_back((*daemon)->Socket("session.sock"));
  for (int i = 0; i < 3; ++i) EXPECT_OK(sessions[i].Greet(HelloOf("")));
  const absl::Status denied = sessions[3].Greet(HelloOf(""));
  EXPECT_DENIED(denied, kMaxSessions);
  EXPECT_EQ(testing::DenialIn(denied).limit, 3u);
  sessions[0].Close();
  EXPECT_TRUE(Eventually([&] {
    WireSession again((*daemon)->Socket("session.sock"));
    return again.Greet(HelloOf("")).ok();
  }));
}

TEST_F(SessionSocket, AClientThatDoesNotReadIsEndedAndItsMemoryComesBack) {
  // A separate process: it may map memory that was sent to it for as long as it lives.
  Child child = Self({"deaf"});
  const std::string ended = HearFrom(child);
  // Its gRPC connection ends with the session, perhaps before the answer.
  EXPECT_THAT(ended, AnyOf(HasSubstr("does not read"), HasSubstr("UNAVAILABLE")));
  EXPECT_THAT(daemon_->Log(), HasSubstr("does not read its socket: dropped"));
  ExpectBystanderWorks();
  // Its session is over, its memory still charged: it might map it.
  EXPECT_GT(Status().devices(0).charged_bytes(), 4 * kMiB);
  child.Signal(SIGKILL);
  child.Wait();
}

TEST_F(SessionSocket, WithoutDescriptorsTheDaemonSaysSoAndRecovers) {
  rlimit limit;
  ASSERT_EQ(prlimit(daemon_->pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  rlimit low = limit;
  low.rlim_cur = static_cast<rlim_t>(daemon_->fds()) + 20;
  bystander_->Stop();
  ASSERT_EQ(prlimit(daemon_->pid(), RLIMIT_NOFILE, &low, nullptr), 0);
  {
    std::vector<WireSession> many;
    absl::Status refused;
    for (int i = 0; i < 30; ++i) {
      many.push_back(Connect());
      refused.Update(many.back().Greet(HelloOf("bad")));
    }
    // The kernel counts those on their way for the user, so also those of other processes.
    EXPECT_THAT(refused.ToString(),
                AnyOf(HasSubstr("no file descriptors left"), HasSubstr("Too many open files"),
                      HasSubstr("too many file descriptors are on their way")));
    // The last descriptors are for operators.
    v1::GetStatusResponse status;
    const grpc::Status asked = v1::Admin::NewStub(testing::ChannelTo(daemon_->Socket("admin.sock")))
                                   ->GetStatus(testing::ContextWith().get(), {}, &status);
    EXPECT_TRUE(asked.ok()) << asked.error_message();
    // A client that takes them, too, is told so, and does not keep the socket's thread spinning.
    std::vector<UniqueFd> streams;
    std::string last;
    for (int i = 0; i < 60; ++i) {
      streams.push_back(testing::ConnectStream(daemon_->Socket("admin.sock")));
      char bytes[1024];
      const ssize_t size = recv(streams.back().get(), bytes, sizeof(bytes), 0);
      last.assign(bytes, static_cast<size_t>(std::max<ssize_t>(size, 0)));
    }
    EXPECT_THAT(last,
                AnyOf(HasSubstr("no file descriptors left"), HasSubstr("Too many open files")));
  }
  ASSERT_EQ(prlimit(daemon_->pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  bystander_ = std::make_unique<testing::Bystander>(daemon_.get());
}

// --- Connections -----------------------------------------------------------------------

TEST_F(SessionSocket, AProcessNameCannotForgeTheLogNorBreakTheTables) {
  Child child = Self({"named"});
  ASSERT_EQ(HearFrom(child), "OK");
  v1::ListSessionsRequest request;
  request.set_tenant("bad");
  v1::ListSessionsResponse sessions;
  const grpc::Status listed = v1::Admin::NewStub(admin_channel_)
                                  ->ListSessions(testing::ContextWith().get(), request, &sessions);
  ASSERT_TRUE(listed.ok()) << listed.error_message();
  ASSERT_EQ(sessions.sessions_size(), 1);
  EXPECT_EQ(sessions.sessions(0).command(), "???forged: log");
  EXPECT_THAT(daemon_->Log(),
              AllOf(HasSubstr("refused ???forged: log"), Not(HasSubstr("\nforged"))));
}

TEST_F(SessionSocket, ASocketWhoseProcessHasGoneGetsNoSession) {
  // The daemon sleeps while a process connects, hands the socket on and goes.
  StopDaemon();
  Child child = Self({"hand-on"});
  auto message = ReceiveMessage(child.channel(), absl::Now() + kAnswerTime);
  ASSERT_TRUE(message.ok()) << message.status();
  ASSERT_EQ(message->fds.size(), 1u);
  EXPECT_EQ(child.Wait(), 0);
  daemon_->child().Signal(SIGCONT);
  auto answer = ReceiveMessage(message->fds[0].get(), absl::Now() + kAnswerTime);
  ASSERT_TRUE(answer.ok()) << answer.status();
  v1::ServerMessage refusal;
  ASSERT_TRUE(refusal.ParseFromString(answer->bytes));
  EXPECT_TRUE(refusal.has_refusal()) << refusal.DebugString();
}

TEST_F(SessionSocket, AProcessInAHiddenPidNamespaceIsToldSo) {
  if (geteuid() != 0) GTEST_SKIP() << "making PID namespaces takes root";
  // The daemon in a separate PID namespace: it cannot see this process.
  const std::string dir = daemon_->runtime_dir() + "-hidden";
  Child child({"/usr/bin/unshare", "--pid", "--fork", "--kill-child",
               testing::ProgramPath("gpumemd"), "--backend", "host", "--runtime-dir", dir,
               "--state-dir", daemon_->state_dir() + "-hidden"});
  const std::string path = dir + "/session.sock";
  ASSERT_TRUE(Eventually([&] { return ConnectUnix(path, SOCK_SEQPACKET).ok(); }));
  WireSession session(path);
  EXPECT_STATUS(session.Greet(HelloOf("")), kFailedPrecondition, "PID namespace");
}

// --- Roles of other processes --------------------------------------------------------

void Say(const std::string& text, absl::Span<const int> fds = {}) {
  SendMessage(3, text, fds, absl::Now() + kAnswerTime).IgnoreError();
}

// Acquires again and again and never reads answers; says how it ended, and waits.
int BeDeaf(const std::string& socket) {
  WireSession session(socket);
  if (absl::Status met = session.Greet(HelloOf("bad")); !met.ok()) return Say(met.ToString()), 1;
  auto broker = session.TakeBroker();
  v1::AcquireRequest acquire;
  acquire.set_bytes(1);
  auto first = testing::CallBroker(*broker, &v1::Broker::Stub::Acquire, acquire, session.token());
  if (!first.ok()) return Say(first.status().ToString()), 1;
  v1::ShareRequest share;
  share.set_lease_id(first->leases(0).lease_id());
  auto ticket = testing::CallBroker(*broker, &v1::Broker::Stub::Share, share, session.token());
  if (!ticket.ok()) return Say(ticket.status().ToString()), 1;
  v1::OpenRequest open;
  for (int i = 0; i < 100; ++i) open.add_tickets(ticket->ticket());
  absl::Status ended;
  for (int i = 0; i < 10000 && ended.ok(); ++i) {
    // By turns, so that it also acquires memory as long as it may have some.
    if (i < 4) {
      ended = testing::CallBroker(*broker, &v1::Broker::Stub::Acquire, acquire, session.token())
                  .status();
    } else {
      ended = testing::CallBroker(*broker, &v1::Broker::Stub::Open, open, session.token()).status();
    }
  }
  Say(ended.ToString());
  pause();
  return 0;
}

int BeNamed(const std::string& socket) {
  prctl(PR_SET_NAME, "\xff\x1b\nforged: log");
  WireSession refused(socket);
  if (refused.Greet(HelloOf("nobody")).ok()) return 1;
  WireSession session(socket);
  Say(session.Greet(HelloOf("bad")).ToString());
  pause();
  return 0;
}

int HandOn(const std::string& socket) {
  WireSession session(socket);
  if (!session.Send(HelloOf("bad").SerializeAsString()).ok()) return 1;
  Say("this", {session.fd()});
  return 0;
}

}  // namespace

int RunRole(const std::string& role, const std::string& socket) {
  if (role == "deaf") return BeDeaf(socket);
  if (role == "named") return BeNamed(socket);
  if (role == "hand-on") return HandOn(socket);
  return 2;
}

}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--role") return gpumem::RunRole(argv[2], argv[3]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
