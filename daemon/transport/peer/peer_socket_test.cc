// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/peer/peer_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

class PeerSocket : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    ours_ = UniqueFd(ends[0]);
    theirs_ = UniqueFd(ends[1]);
    PrepareClientSocket(ours_.get());
  }
  absl::StatusCode Receive() { return ReceiveFromClient(ours_.get()).status().code(); }
  void Say(const std::string& bytes, const std::vector<int>& fds = {}) {
    ASSERT_TRUE(gpumem::SendMessage(theirs_.get(), bytes, fds, absl::InfinitePast()).ok());
  }

  UniqueFd ours_, theirs_;
};

TEST_F(PeerSocket, ReceivesOneMessageAtATime) {
  EXPECT_EQ(Receive(), absl::StatusCode::kDeadlineExceeded);
  Say("one");
  Say("two");
  EXPECT_EQ(ReceiveFromClient(ours_.get()).value_or(""), "one");
  EXPECT_EQ(ReceiveFromClient(ours_.get()).value_or(""), "two");
  EXPECT_EQ(Receive(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(PeerSocket, AnEmptyMessageIsNotTheEnd) {
  ASSERT_EQ(send(theirs_.get(), "", 0, 0), 0);
  Say("more");
  EXPECT_EQ(Receive(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Receive(), absl::StatusCode::kOk);
  theirs_.reset();
  EXPECT_EQ(Receive(), absl::StatusCode::kUnavailable);
}

TEST_F(PeerSocket, WhatWasSentBeforeTheEndIsReceived) {
  Say("last");
  ASSERT_TRUE(gpumem::SendMessage(ours_.get(), "unread", {}, absl::InfinitePast()).ok());
  theirs_.reset();  // with unread data: a reset is reported first
  EXPECT_EQ(ReceiveFromClient(ours_.get()).value_or(""), "last");
  EXPECT_EQ(Receive(), absl::StatusCode::kUnavailable);
}

TEST_F(PeerSocket, DescriptorsAreRefusedAndClosed) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  Say("some", std::vector<int>(gpumem::kMaxMessageFds, writer.get()));
  writer.reset();
  EXPECT_EQ(Receive(), absl::StatusCode::kInvalidArgument);
  char byte;
  EXPECT_EQ(read(reader.get(), &byte, 1), 0) << "a copy is still open";
}

// A TCP socket that takes 30 s to close with its last descriptor: unsent bytes, no reader, and
// SO_LINGER.
struct LingeringSocket {
  UniqueFd socket, reader;
};
LingeringSocket MakeLingeringSocket() {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener.get(), any, size), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), any, &size), 0);
  LingeringSocket made{UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), {}};
  EXPECT_EQ(connect(made.socket.get(), any, size), 0);
  made.reader = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const std::string bytes(1 << 16, 'x');
  while (send(made.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  const linger slow{.l_onoff = 1, .l_linger = 30};
  EXPECT_EQ(setsockopt(made.socket.get(), SOL_SOCKET, SO_LINGER, &slow, sizeof(slow)), 0);
  return made;
}

TEST_F(PeerSocket, ADescriptorThatTakesLongToCloseDoesNotBlockTheCaller) {
  std::vector<UniqueFd> readers;
  const auto say_slow = [&](const std::string& bytes) {
    LingeringSocket slow = MakeLingeringSocket();
    const int fd = slow.socket.get();
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
    ASSERT_EQ(sendmsg(theirs_.get(), &header, 0), static_cast<ssize_t>(bytes.size()));
    readers.push_back(std::move(slow.reader));
  };
  const absl::Time begin = absl::Now();
  say_slow("some");
  EXPECT_EQ(Receive(), absl::StatusCode::kInvalidArgument);
  // Also if the message itself is never read: behind others, empty, or too large.
  for (int i = 0; i < 20; ++i) Say("noise");
  say_slow("behind");
  say_slow("");
  say_slow(std::string(gpumem::kMaxMessageBytes + 1, 'x'));
  SendLast(ours_.get(), gpumem::v1::ServerMessage());
  ours_.reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
}

TEST_F(PeerSocket, AMessageOverTheLimitIsRefusedWhole) {
  const std::string large(gpumem::kMaxMessageBytes + 1, 'x');
  ASSERT_EQ(send(theirs_.get(), large.data(), large.size(), 0), static_cast<ssize_t>(large.size()));
  EXPECT_EQ(Receive(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Receive(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(PeerSocket, TheLastMessageIsReadWhateverTheClientHasSent) {
  for (int i = 0; i < 50; ++i) Say("noise");
  ASSERT_EQ(send(theirs_.get(), "", 0, 0), 0);
  Say("more noise");
  gpumem::v1::ServerMessage goodbye;
  goodbye.mutable_goodbye()->set_reason("enough");
  SendLast(ours_.get(), goodbye);
  EXPECT_EQ(send(theirs_.get(), "x", 1, MSG_NOSIGNAL), -1) << "it may still talk";
  ours_.reset();
  auto heard = gpumem::ReceiveMessage(theirs_.get(), absl::InfinitePast());
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_EQ(heard->bytes, goodbye.SerializeAsString());
}

TEST_F(PeerSocket, SendLastDoesNotWaitForAClientThatDoesNotRead) {
  while (gpumem::SendMessage(ours_.get(), "fill", {}, absl::InfinitePast()).ok()) {
  }
  gpumem::v1::ServerMessage goodbye;
  goodbye.mutable_goodbye()->set_reason("enough");
  const absl::Time begin = absl::Now();
  SendLast(ours_.get(), goodbye);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
}

TEST(Printable, KeepsAsciiAndMarksTheRest) {
  EXPECT_EQ(Printable("a b~\"\\"), "a b~\"\\");
  EXPECT_EQ(Printable(std::string("\n\x1b[0m\0\x7f\xc3\xbc", 9)), "??[0m????");
  EXPECT_EQ(Printable(""), "");
}

}  // namespace
}  // namespace gpumemd
