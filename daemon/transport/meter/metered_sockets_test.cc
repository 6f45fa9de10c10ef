// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/meter/metered_sockets.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/unique_fd.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

struct Pair {
  Pair() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    served = UniqueFd(ends[0]);
    peer = UniqueFd(ends[1]);
  }
  void Send(const std::string& bytes) {
    EXPECT_EQ(send(peer.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  // Into two buffers, as gRPC does it.
  ssize_t Read(int flags = 0) {
    char first[5], second[4000];
    iovec parts[2] = {{.iov_base = first, .iov_len = sizeof(first)},
                      {.iov_base = second, .iov_len = sizeof(second)}};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    return recvmsg(served.get(), &message, flags);
  }
  UniqueFd served, peer;
};

const std::string kPing = {0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8};

std::string Pings(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += kPing;
  return bytes;
}

std::string Opening() { return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"; }

std::shared_ptr<FrameBudget> PingsAllowed(double count) {
  return std::make_shared<FrameBudget>(
      FrameBudgetOptions{.max_control = count, .control_per_second = 0});
}

absl::Status Meter(int socket, std::shared_ptr<FrameBudget> budget) {
  const auto window = std::make_shared<CallWindow>(CallWindowOptions{.max_calls = 256});
  return MeterSocket(socket, std::move(budget), window, window);
}

TEST(MeteredSocketsTest, ReadsFailOnceTheBudgetIsExhausted) {
  Pair pair;
  const auto budget = PingsAllowed(10);
  ASSERT_TRUE(Meter(pair.served.get(), budget).ok());
  const std::string allowed = Opening() + Pings(10);
  pair.Send(allowed);
  EXPECT_EQ(pair.Read(MSG_PEEK), static_cast<ssize_t>(allowed.size()));
  EXPECT_EQ(pair.Read(), static_cast<ssize_t>(allowed.size()));
  EXPECT_EQ(pair.Read(), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_FALSE(budget->exhausted());
  for (int i = 0; i < 2; ++i) {
    pair.Send(Pings(1));
    EXPECT_EQ(pair.Read(), -1);
    EXPECT_EQ(errno, ECONNRESET);
  }
  EXPECT_TRUE(budget->exhausted());
}

TEST(MeteredSocketsTest, SocketsThatShareABudgetEndTogether) {
  Pair one, two, other;
  const auto budget = PingsAllowed(10);
  ASSERT_TRUE(Meter(one.served.get(), budget).ok());
  ASSERT_TRUE(Meter(two.served.get(), budget).ok());
  ASSERT_TRUE(Meter(other.served.get(), PingsAllowed(10)).ok());
  for (Pair* pair : {&one, &two, &other}) pair->Send(Opening() + Pings(6));
  EXPECT_GT(one.Read(), 0);
  EXPECT_EQ(two.Read(), -1);
  EXPECT_GT(other.Read(), 0);
  one.Send("x");
  EXPECT_EQ(one.Read(), -1);
}

TEST(MeteredSocketsTest, TheConnectionWhoseRequestsAreTooLargeEndsAlone) {
  const auto budget = std::make_shared<FrameBudget>(
      FrameBudgetOptions{.max_begun_bytes = 3000, .begun_bytes_per_second = 0});
  const auto begin = [](size_t bytes) {
    std::string frame = {0, static_cast<char>(bytes >> 8), 0, 0, 0, 0, 0, 0, 1};
    return Opening() + frame + std::string(bytes, 'x');
  };
  auto gone = std::make_unique<Pair>();
  ASSERT_TRUE(Meter(gone->served.get(), budget).ok());
  gone->Send(begin(2048));
  EXPECT_GT(gone->Read(), 0);
  gone->peer = {};
  EXPECT_EQ(gone->Read(), 0);  // its bytes come back
  Pair one, two, three;
  for (Pair* pair : {&one, &two, &three}) {
    ASSERT_TRUE(Meter(pair->served.get(), budget).ok());
  }
  one.Send(begin(2048));
  EXPECT_GT(one.Read(), 0);
  two.Send(begin(2048));
  EXPECT_EQ(two.Read(), -1);
  EXPECT_EQ(errno, ECONNRESET);
  one.Send(Pings(1));
  EXPECT_GT(one.Read(), 0);
  three.Send(begin(512));
  EXPECT_GT(three.Read(), 0);
}

TEST(MeteredSocketsTest, WhatGetsTheNumberOfAClosedSocketIsNotMetered) {
  Pair old, made;
  const auto budget = PingsAllowed(0);
  ASSERT_TRUE(Meter(old.served.get(), budget).ok());
  const int number = old.served.get();
  old.served = {};
  EXPECT_EQ(budget.use_count(), 1);
  ASSERT_EQ(fcntl(made.served.get(), F_DUPFD_CLOEXEC, number), number);
  made.served = UniqueFd(number);
  made.Send(Opening() + Pings(20));
  EXPECT_GT(made.Read(), 0);
  EXPECT_FALSE(budget->exhausted());
}

// HEADERS that end a request, or an answer.
std::string Ends(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += std::string({0, 0, 0, 1, /*END_STREAM*/ 1, 0, 0, 0, 1});
  return bytes;
}

// In which no call ever leaves without an answer.
std::shared_ptr<CallWindow> Window(uint64_t calls) {
  return std::make_shared<CallWindow>(
      CallWindowOptions{.max_calls = calls, .patience = absl::Hours(1)});
}

// A connection whose reader is notified once of new data, as gRPC is.
struct Awaited : Pair {
  explicit Awaited(std::shared_ptr<CallWindow> window,
                   std::shared_ptr<CallWindow> ends = Window(1000),
                   std::shared_ptr<FrameBudget> budget = PingsAllowed(100)) {
    EXPECT_TRUE(
        MeterSocket(served.get(), std::move(budget), std::move(window), std::move(ends)).ok());
    epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data = {.u32 = 7}};
    EXPECT_EQ(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, served.get(), &event), 0);
  }
  bool HasEvent() {
    epoll_event event;
    return epoll_wait(epoll.get(), &event, 1, 0) == 1 && event.data.u32 == 7 &&
           (event.events & EPOLLIN) != 0;
  }
  void Answer(int calls) {
    std::string bytes = Ends(calls);
    iovec part = {.iov_base = bytes.data(), .iov_len = bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    EXPECT_EQ(sendmsg(served.get(), &message, 0), static_cast<ssize_t>(bytes.size()));
  }
  UniqueFd epoll{epoll_create1(EPOLL_CLOEXEC)};
};

TEST(MeteredSocketsTest, NothingIsReadWhileTheWindowIsFull) {
  const auto window =
      std::make_shared<CallWindow>(CallWindowOptions{.max_calls = 4, .patience = absl::Hours(1)});
  Awaited one(window), two(window);
  two.Send(Opening());
  EXPECT_GT(two.Read(), 0);
  one.Send(Opening() + Ends(5));
  EXPECT_TRUE(one.HasEvent());
  EXPECT_GT(one.Read(), 0);
  two.Send(Ends(1));
  EXPECT_TRUE(two.HasEvent());
  EXPECT_EQ(two.Read(), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_FALSE(two.HasEvent());
  one.Answer(2);
  EXPECT_FALSE(two.HasEvent());
  one.Answer(1);
  EXPECT_TRUE(two.HasEvent());
  EXPECT_GT(two.Read(), 0);
  EXPECT_EQ(two.Read(), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_FALSE(one.HasEvent());  // it was not held
}

TEST(MeteredSocketsTest, TheEndOfOneThatIsHeldIsRead) {
  const auto window =
      std::make_shared<CallWindow>(CallWindowOptions{.max_calls = 1, .patience = absl::Hours(1)});
  Awaited one(window), two(window);
  for (Awaited* each : {&one, &two}) {
    each->Send(Opening() + Ends(each == &one ? 1 : 0));
    EXPECT_GT(each->Read(), 0);
  }
  two.Send(Ends(1));
  EXPECT_EQ(two.Read(), -1);
  // As ApiLine::Cut() does it, beside a reader that was told at once.
  shutdown(two.served.get(), SHUT_RDWR);
  EXPECT_TRUE(two.HasEvent());
  EXPECT_EQ(two.Read(), -1);
  char discarded[100];
  EXPECT_GT(recv(two.served.get(), discarded, sizeof(discarded), 0), 0);
  EXPECT_FALSE(two.HasEvent());
  one.Answer(1);
  EXPECT_TRUE(two.HasEvent());
  EXPECT_EQ(two.Read(), 0);
}

TEST(MeteredSocketsTest, ARequestThatIsCountedIsReadToItsEnd) {
  const auto window =
      std::make_shared<CallWindow>(CallWindowOptions{.max_calls = 1, .patience = absl::Hours(1)});
  Awaited one(window);
  const std::string request = {0, 0, 5, /*DATA*/ 0, /*END_STREAM*/ 1, 0, 0, 0, 1};
  one.Send(Opening() + request);
  EXPECT_GT(one.Read(), 0);
  one.Send("12345" + request + "12345");
  EXPECT_EQ(one.Read(), 5);
  EXPECT_EQ(one.Read(), -1);
  EXPECT_EQ(errno, EAGAIN);
  one.Answer(1);
  EXPECT_EQ(one.Read(), 9 + 5);
}

TEST(MeteredSocketsTest, ThoseBehindCallsThatWaitAreResumed) {
  const auto window = std::make_shared<CallWindow>(
      CallWindowOptions{.max_calls = 4, .patience = absl::Milliseconds(20)});
  Awaited one(window);
  one.Send(Opening() + Ends(4));
  EXPECT_TRUE(one.HasEvent());
  EXPECT_GT(one.Read(), 0);
  one.Send(Ends(4));
  EXPECT_TRUE(one.HasEvent());
  if (one.Read() > 0) GTEST_SKIP() << "this machine is so slow that the calls have waited already";
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!one.HasEvent() && absl::Now() < deadline) ResumeReads(window);
  EXPECT_GT(one.Read(), 0);
}

TEST(MeteredSocketsTest, TheEndIsReadThoughTheWindowIsFull) {
  const auto window =
      std::make_shared<CallWindow>(CallWindowOptions{.max_calls = 1, .patience = absl::Hours(1)});
  Awaited one(window);
  one.Send(Opening() + Ends(1));
  EXPECT_GT(one.Read(), 0);
  one.peer = {};
  EXPECT_EQ(one.Read(), 0);
}

// HEADERS of requests that have not ended yet.
std::string Begins(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += std::string({0, 0, 0, 1, 0, 0, 0, 0, 1});
  return bytes;
}

TEST(MeteredSocketsTest, ConnectionsWithOpenCallsEndInTurn) {
  const auto ends = Window(10);
  Awaited one(Window(100), ends), two(Window(100), ends), idle(Window(100), ends);
  one.Send(Opening() + Ends(8) + Begins(4));
  two.Send(Opening() + Begins(1));
  idle.Send(Opening() + Ends(3));
  for (Awaited* each : {&one, &two, &idle}) EXPECT_GT(each->Read(), 0);
  idle.Answer(3);
  char answers[100];
  EXPECT_GT(recv(idle.peer.get(), answers, sizeof(answers), 0), 0);
  for (Awaited* each : {&one, &two, &idle}) each->peer = {};
  EXPECT_EQ(one.Read(), 0);
  EXPECT_EQ(one.Read(), 0);
  EXPECT_TRUE(two.HasEvent());
  EXPECT_EQ(two.Read(), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(idle.Read(), 0);
  idle.served = {};
  EXPECT_FALSE(two.HasEvent());
  one.served = {};
  EXPECT_TRUE(two.HasEvent());
  EXPECT_EQ(two.Read(), 0);
}

TEST(MeteredSocketsTest, ConnectionsThatAreRefusedEndInTurn) {
  const auto ends = Window(10);
  const auto budget = PingsAllowed(0);
  Awaited one(Window(100), ends, budget), two(Window(100), ends, budget);
  for (Awaited* each : {&one, &two}) {
    each->Send(Opening() + Begins(10));
    EXPECT_GT(each->Read(), 0);
  }
  for (Awaited* each : {&one, &two}) {
    each->Send(Pings(100));
    EXPECT_TRUE(each->HasEvent());
    EXPECT_EQ(each->Read(), -1);
    EXPECT_EQ(errno, each == &one ? ECONNRESET : EAGAIN);
  }
  EXPECT_TRUE(two.HasEvent());  // its end
  EXPECT_EQ(two.Read(), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_FALSE(two.HasEvent());
  one.served = {};
  EXPECT_TRUE(two.HasEvent());
  EXPECT_EQ(two.Read(), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST(MeteredSocketsTest, AnEndThatTakesLongDelaysOthersOnlyBriefly) {
  const auto ends = std::make_shared<CallWindow>(
      CallWindowOptions{.max_calls = 1, .patience = absl::Milliseconds(20)});
  Awaited one(Window(100), ends), two(Window(100), ends);
  for (Awaited* each : {&one, &two}) {
    each->Send(Opening() + Begins(10));
    EXPECT_GT(each->Read(), 0);
    each->peer = {};
  }
  EXPECT_EQ(one.Read(), 0);
  EXPECT_TRUE(two.HasEvent());
  if (two.Read() == 0) GTEST_SKIP() << "this machine is so slow that the time is over already";
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!two.HasEvent() && absl::Now() < deadline) ResumeReads(ends);
  EXPECT_EQ(two.Read(), 0);
}

TEST(MeteredSocketsTest, ANumberThatIsTooHighIsRefused) {
  EXPECT_EQ(Meter(1 << 20, PingsAllowed(1)).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace gpumemd
