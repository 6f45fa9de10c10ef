#include "daemon/transport/peer_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
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
  theirs_.reset();  // with something unread: we are told of a reset first
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

TEST_F(PeerSocket, AMessageOverTheLimitIsRefusedWhole) {
  const std::string large(gpumem::kMaxMessageBytes + 1, 'x');
  ASSERT_EQ(send(theirs_.get(), large.data(), large.size(), 0), static_cast<ssize_t>(large.size()));
  EXPECT_EQ(Receive(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Receive(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(PeerSocket, TheLastWordIsReadWhateverTheClientHasSent) {
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
  SendLast(ours_.get(), goodbye);
}

TEST(Printable, KeepsAsciiAndMarksTheRest) {
  EXPECT_EQ(Printable("a b~\"\\"), "a b~\"\\");
  EXPECT_EQ(Printable(std::string("\n\x1b[0m\0\x7f\xc3\xbc", 9)), "??[0m????");
  EXPECT_EQ(Printable(""), "");
}

}  // namespace
}  // namespace gpumemd
