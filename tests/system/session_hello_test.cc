// SPDX-License-Identifier: Apache-2.0
// Bad messages on the session socket: their sender gets a clear refusal, nothing leaks, and no
// other client is disturbed (the fixture checks, tests/support/attack.h).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/unix_channel.h"
#include "tests/support/attack.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::HelloOf;
using testing::WireSession;
using SessionSocket = testing::AttackTest;

UniqueFd DevNull() { return UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC)); }

// --- The first message ---------------------------------------------------------------

TEST_F(SessionSocket, OtherProtocolVersionsAreRefusedBothBeingNamed) {
  for (uint32_t version : {0u, 1u, 4294967295u}) {
    v1::Hello hello = HelloOf("bad");
    hello.set_protocol_version(version);
    EXPECT_STATUS(AnswerTo(hello), kUnimplemented, absl::StrCat("protocol version ", version));
    EXPECT_STATUS(AnswerTo(hello), kUnimplemented, "speaks 2");
  }
}

TEST_F(SessionSocket, AFirstMessageOtherThanHelloIsRefused) {
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

TEST_F(SessionSocket, UnknownFieldsAreAccepted) {
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
  EXPECT_STATUS(answer, kPermissionDenied, "\"root\"");
  EXPECT_STATUS(answer, kPermissionDenied, "good, bad, other");
  EXPECT_STATUS(AnswerTo(HelloOf("../../good")), kPermissionDenied, "");
}

TEST_F(SessionSocket, AProcessThatNoRuleMatchesIsRefused) {
  auto daemon = testing::DaemonProcess::Start(
      {.config = "[[tenant]]\nname = \"z\"\n[[rule]]\ntenant = \"z\"\nuid = 4000000\n"});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  for (const char* tenant : {"", "z"}) {
    WireSession session((*daemon)->Socket("session.sock"));
    EXPECT_STATUS(session.Greet(HelloOf(tenant)), kPermissionDenied,
                  absl::StrCat("process ", getpid()));
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
  for (const Late& late : {Late{hello, "must not send messages on this socket after Hello", {}},
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

TEST_F(SessionSocket, ASecondHelloEndsTheSession) {
  WireSession session = Connect();
  const std::string hello = HelloOf("bad").SerializeAsString();
  ASSERT_OK(session.Send(hello));
  if (absl::Status second = session.Send(hello); !second.ok()) FAIL() << second;
  EXPECT_OK(session.Answer());
  EXPECT_STATUS(session.Answer(), kCancelled, "must not send messages on this socket after Hello");
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

}  // namespace
}  // namespace gpumem
