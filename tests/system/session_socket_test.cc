// Bad input on the session socket: its sender gets a clear refusal, nothing leaks, and no other
// client is disturbed (the fixture checks, tests/support/attack.h).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"
#include "tests/support/attack.h"
#include "tests/support/child.h"
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
using testing::kMiB;
using ::testing::Not;
using testing::WireSession;

UniqueFd DevNull() { return UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC)); }

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

// --- The first message ---------------------------------------------------------------

TEST_F(SessionSocket, OtherProtocolVersionsAreRefusedBothBeingNamed) {
  for (uint32_t version : {0u, 1u, 4294967295u}) {
    v1::Hello hello = HelloOf("bad");
    hello.set_protocol_version(version);
    EXPECT_STATUS(AnswerTo(hello), kUnimplemented, absl::StrCat("protocol version ", version));
    EXPECT_STATUS(AnswerTo(hello), kUnimplemented, "speaks 2");
  }
}

TEST_F(SessionSocket, WhatIsNoHelloIsRefused) {
  EXPECT_STATUS(AnswerTo("\xff\xff\xff\xff"), kInvalidArgument, "must be a Hello");
  EXPECT_STATUS(AnswerTo("GET / HTTP/1.1\r\n\r\n"), kInvalidArgument, "must be a Hello");
  // Cut off in the middle.
  const std::string whole = HelloOf("bad").SerializeAsString();
  EXPECT_STATUS(AnswerTo(whole.substr(0, whole.size() - 2)), kInvalidArgument, "must be a Hello");
  // A name that is no UTF-8.
  EXPECT_STATUS(AnswerTo("\x08\x01\x12\x02\xc3\x28"), kInvalidArgument, "must be a Hello");
}

TEST_F(SessionSocket, AnEmptyPacketIsRefused) {
  EXPECT_STATUS(AnswerTo(""), kInvalidArgument, "empty");
}

TEST_F(SessionSocket, PacketsOverTheLimitAreRefused) {
  EXPECT_STATUS(AnswerTo(std::string(kMaxMessageBytes + 1, 'x')), kDataLoss, "larger than 65536");
  // Also if its remaining part would be a valid Hello.
  v1::Hello hello = HelloOf("bad");
  hello.GetReflection()->MutableUnknownFields(&hello)->AddLengthDelimited(
      1000, std::string(kMaxMessageBytes, 'x'));
  EXPECT_STATUS(AnswerTo(hello), kDataLoss, "larger than 65536");
}

TEST_F(SessionSocket, FieldsOfLaterVersionsAreNoMistake) {
  v1::Hello hello = HelloOf("bad");
  hello.GetReflection()->MutableUnknownFields(&hello)->AddVarint(1000, 1);
  EXPECT_OK(AnswerTo(hello));
}

TEST_F(SessionSocket, NamesAreShortAndPrintable) {
  const auto named = [](const std::string& name) { return HelloOf("bad", name); };
  EXPECT_OK(AnswerTo(named(std::string(64, 'n'))));
  for (const std::string& name :
       {std::string(65, 'n'), std::string("a\nb"), std::string("\x1b[31m"), std::string("\0", 1),
        std::string("ü"), std::string(60000, 'n')}) {
    EXPECT_STATUS(AnswerTo(named(name)), kInvalidArgument,
                  "a client's name is at most 64 printable characters");
  }
  for (const std::string& tenant :
       {std::string(64, 't'), std::string("bad\n"), std::string(60000, 't')}) {
    EXPECT_STATUS(AnswerTo(HelloOf(tenant)), kInvalidArgument,
                  "a tenant's name is at most 63 printable characters");
  }
}

TEST_F(SessionSocket, ATenantThatNoRuleAllowsIsRefusedAndThoseAllowedAreNamed) {
  const absl::Status answer = AnswerTo(HelloOf("root"));
  EXPECT_STATUS(answer, kPermissionDenied, "be tenant \"root\"");
  EXPECT_STATUS(answer, kPermissionDenied, "allow it: good, bad, other");
  EXPECT_STATUS(AnswerTo(HelloOf("../../good")), kPermissionDenied, "no rule lets");
}

TEST_F(SessionSocket, WhomNoRuleMatchesIsRefused) {
  auto daemon = testing::DaemonProcess::Start(
      {.config = "[[tenant]]\nname = \"z\"\n[[rule]]\ntenant = \"z\"\nuid = 4000000\n"});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  for (const char* tenant : {"", "z"}) {
    WireSession session((*daemon)->Socket("session.sock"));
    EXPECT_STATUS(session.Greet(HelloOf(tenant)), kPermissionDenied,
                  absl::StrCat("no rule of the daemon's configuration matches process ", getpid()));
  }
}

// --- Descriptors where none belong ---------------------------------------------------

TEST_F(SessionSocket, HelloWithDescriptorsIsRefusedAndTheyAreClosed) {
  const std::string hello = HelloOf("bad").SerializeAsString();
  for (size_t count : {size_t{1}, kMaxMessageFds}) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    UniqueFd reader(ends[0]);
    {
      UniqueFd writer(ends[1]);
      const std::vector<int> fds(count, writer.get());
      EXPECT_STATUS(AnswerTo(hello, fds), kInvalidArgument, "file descriptors");
    }
    char byte;
    EXPECT_EQ(read(reader.get(), &byte, 1), 0) << "the daemon still has it";
  }
  // Whatever else is wrong with the packet.
  const UniqueFd null = DevNull();
  EXPECT_STATUS(AnswerTo("", {null.get()}), kInvalidArgument, "file descriptors");
  EXPECT_STATUS(AnswerTo(std::string(kMaxMessageBytes + 1, 'x'), {null.get()}), kInvalidArgument,
                "file descriptors");
}

TEST_F(SessionSocket, AMessageAfterWelcomeEndsTheSession) {
  const UniqueFd null = DevNull();
  struct Late {
    std::string packet, words;
    std::vector<int> fds;
  };
  const std::string hello = HelloOf("bad").SerializeAsString();
  for (const Late& late : {Late{hello, "says nothing on this socket after Hello", {}},
                           Late{hello, "file descriptors", {null.get()}}, Late{"", "empty", {}},
                           Late{std::string(kMaxMessageBytes + 1, 'x'), "larger than", {}}}) {
    WireSession session = Session();
    const absl::Status sent = session.Send(late.packet, late.fds);
    if (!late.fds.empty() && absl::IsPermissionDenied(sent)) continue;  // never arrives
    ASSERT_OK(sent);
    EXPECT_STATUS(session.Answer(), kCancelled, late.words);
    EXPECT_TRUE(session.Ended());
  }
}

TEST_F(SessionSocket, TwoHellosAtOnceAreOneTooMany) {
  WireSession session = Connect();
  const std::string hello = HelloOf("bad").SerializeAsString();
  ASSERT_OK(session.Send(hello));
  if (absl::Status second = session.Send(hello); !second.ok()) FAIL() << second;
  EXPECT_OK(session.Answer());
  EXPECT_STATUS(session.Answer(), kCancelled, "says nothing on this socket after Hello");
}

TEST_F(SessionSocket, CredentialsInAMessageChangeNothing) {
  WireSession session = Connect();
  std::string hello = HelloOf("bad").SerializeAsString();
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))] = {};
  iovec part = {hello.data(), hello.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  cmsghdr* message = CMSG_FIRSTHDR(&header);
  message->cmsg_level = SOL_SOCKET;
  message->cmsg_type = SCM_CREDENTIALS;
  message->cmsg_len = CMSG_LEN(sizeof(ucred));
  // Root may lie here, and pretends to be init.
  const ucred pretended{.pid = geteuid() == 0 ? 1 : getpid(), .uid = getuid(), .gid = getgid()};
  memcpy(CMSG_DATA(message), &pretended, sizeof(pretended));
  ASSERT_GT(sendmsg(session.fd(), &header, 0), 0);
  ASSERT_OK(session.Answer());
  v1::ListSessionsResponse sessions;
  v1::ListSessionsRequest request;
  request.set_tenant("bad");
  ASSERT_TRUE(v1::Admin::NewStub(admin_channel_)
                  ->ListSessions(testing::ContextWith().get(), request, &sessions)
                  .ok());
  ASSERT_EQ(sessions.sessions_size(), 1);
  EXPECT_EQ(sessions.sessions(0).pid(), getpid());
}

// --- Silence and floods --------------------------------------------------------------

TEST_F(SessionSocket, ASilentClientIsDroppedInTime) {
  WireSession silent = Connect();
  const absl::Time begin = absl::Now();
  EXPECT_STATUS(silent.Answer(), kDeadlineExceeded, "no Hello within 5s");
  EXPECT_GE(absl::Now() - begin, absl::Seconds(4));
  EXPECT_LE(absl::Now() - begin, absl::Seconds(10));
  EXPECT_TRUE(silent.Ended());
}

TEST_F(SessionSocket, ThoseWhoConnectAndCloseLeaveNothing) {
  const std::string hello = HelloOf("bad").SerializeAsString();
  for (int i = 0; i < 300; ++i) {
    WireSession session = Connect();
    if (i % 3 == 1) session.Send(hello).IgnoreError();  // gone before it is welcomed
    if (i % 3 == 2) session.Send(hello, {session.fd()}).IgnoreError();
  }
}

TEST_F(SessionSocket, TwoThousandSilentClientsKeepNobodyOut) {
  std::vector<WireSession> silent;
  for (int i = 0; i < 2000; ++i) silent.push_back(Connect());
  WireSession session = Session();
  ExpectBystanderWorks();
  // The first had to make room for the last, and was told.
  EXPECT_STATUS(silent[0].Answer(), kResourceExhausted, "have not said Hello");
}

TEST_F(SessionSocket, ThoseWhoSpeakGetInAmongManyWhoDoNot) {
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
  EXPECT_STATUS(sessions[3].Greet(HelloOf("")), kResourceExhausted, "session");
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
    EXPECT_THAT(refused.ToString(),
                AnyOf(HasSubstr("no file descriptors left"), HasSubstr("Too many open files")));
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
