// SPDX-License-Identifier: Apache-2.0
#include "common/unix_channel.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace unix_channel_test {

using ::testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(10);

size_t OpenFds() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

class UnixChannelTest : public ::testing::Test {
 protected:
  UnixChannelTest() {
    char name[] = "/tmp/unix-channel-XXXXXX";
    folder_ = mkdtemp(name);
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    here_.reset(pair[0]);
    there_.reset(pair[1]);
  }
  ~UnixChannelTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(absl::string_view name) const { return absl::StrCat(folder_, "/", name); }

  // Sends past the limits that SendMessage keeps.
  void SendRaw(const std::string& bytes, int fd, size_t fd_count) {
    std::vector<char> control(CMSG_SPACE(fd_count * sizeof(int)));
    iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    for (size_t i = 0; i < fd_count; ++i) {
      memcpy(CMSG_DATA(rights) + i * sizeof(int), &fd, sizeof(int));
    }
    ASSERT_EQ(sendmsg(here_.get(), &header, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  std::string folder_;
  UniqueFd here_, there_;
};

TEST_F(UnixChannelTest, CarriesBytesAndDescriptors) {
  UniqueFd file(open(Path("file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_EQ(write(file.get(), "seen", 4), 4);
  const std::string bytes("one\0two", 7);
  ASSERT_TRUE(SendMessage(here_.get(), bytes, {file.get(), file.get()}, absl::Now() + kSoon).ok());

  absl::StatusOr<UnixMessage> message = ReceiveMessage(there_.get(), absl::Now() + kSoon);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->bytes, bytes);
  ASSERT_EQ(message->fds.size(), 2u);
  char read_back[4];
  EXPECT_EQ(pread(message->fds[1].get(), read_back, 4, 0), 4);
  EXPECT_EQ(std::string(read_back, 4), "seen");
  for (const UniqueFd& fd : message->fds) {
    EXPECT_EQ(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
}

TEST_F(UnixChannelTest, CarriesExactlyTheLargestMessage) {
  const std::string largest(kMaxMessageBytes, 'x');
  const std::vector<int> fds(kMaxMessageFds, here_.get());
  ASSERT_TRUE(SendMessage(here_.get(), largest, fds, absl::Now() + kSoon).ok());
  absl::StatusOr<UnixMessage> message = ReceiveMessage(there_.get(), absl::Now() + kSoon);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->bytes, largest);
  EXPECT_EQ(message->fds.size(), kMaxMessageFds);

  EXPECT_EQ(SendMessage(here_.get(), largest + "x", {}, absl::Now() + kSoon).code(),
            absl::StatusCode::kInvalidArgument);
  const std::vector<int> more(kMaxMessageFds + 1, here_.get());
  EXPECT_EQ(SendMessage(here_.get(), "x", more, absl::Now() + kSoon).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SendMessage(here_.get(), "", {}, absl::Now() + kSoon).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(UnixChannelTest, OversizedMessageIsRefusedAndItsDescriptorsClosed) {
  const size_t before = OpenFds();
  SendRaw(std::string(kMaxMessageBytes + 1, 'x'), here_.get(), 3);
  EXPECT_EQ(ReceiveMessage(there_.get(), absl::Now() + kSoon).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(UnixChannelTest, DescriptorsOverTheProcessLimitAreRefusedAndClosed) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  SendRaw("x", here_.get(), 10);
  const size_t before = OpenFds();
  // Room for some of the ten, not for all.
  rlimit low = limit;
  low.rlim_cur = static_cast<rlim_t>(std::max(here_.get(), there_.get())) + 5;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const absl::Status status = ReceiveMessage(there_.get(), absl::Now() + kSoon).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit"));
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(UnixChannelTest, EmptyPacketCountsAsClosedAndLeavesNoDescriptor) {
  const size_t before = OpenFds();
  SendRaw("", here_.get(), 2);
  EXPECT_EQ(ReceiveMessage(there_.get(), absl::Now() + kSoon).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(UnixChannelTest, ReceiveHonoursItsDeadline) {
  EXPECT_EQ(ReceiveMessage(there_.get(), absl::InfinitePast()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  const absl::Time start = absl::Now();
  EXPECT_EQ(ReceiveMessage(there_.get(), start + absl::Milliseconds(30)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(30));
}

TEST_F(UnixChannelTest, ReceiveWithoutDeadlineWaits) {
  std::thread sender(
      [this] { ASSERT_TRUE(SendMessage(here_.get(), "late", {}, absl::InfiniteFuture()).ok()); });
  absl::StatusOr<UnixMessage> message = ReceiveMessage(there_.get(), absl::InfiniteFuture());
  sender.join();
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->bytes, "late");
}

TEST_F(UnixChannelTest, SendWaitsForRoomUntilTheDeadline) {
  const std::string bytes(kMaxMessageBytes, 'x');
  absl::Status status;
  int sent = 0;
  while ((status = SendMessage(here_.get(), bytes, {}, absl::InfinitePast())).ok()) ++sent;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GT(sent, 0);

  std::thread reader([this, sent] {
    for (int i = 0; i < sent + 1; ++i) {
      ASSERT_TRUE(ReceiveMessage(there_.get(), absl::Now() + kSoon).ok());
    }
  });
  EXPECT_TRUE(SendMessage(here_.get(), bytes, {}, absl::Now() + kSoon).ok());
  reader.join();
}

TEST_F(UnixChannelTest, AGonePeerIsUnavailable) {
  there_.reset();
  EXPECT_EQ(SendMessage(here_.get(), "x", {}, absl::Now() + kSoon).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReceiveMessage(here_.get(), absl::Now() + kSoon).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(UnixChannelTest, LastWordsOfAPeerThatDidNotReadAreHeard) {
  ASSERT_TRUE(SendMessage(here_.get(), "never read", {}, absl::Now() + kSoon).ok());
  ASSERT_TRUE(SendMessage(there_.get(), "last words", {}, absl::Now() + kSoon).ok());
  there_.reset();
  absl::StatusOr<UnixMessage> message = ReceiveMessage(here_.get(), absl::Now() + kSoon);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->bytes, "last words");
  EXPECT_EQ(ReceiveMessage(here_.get(), absl::Now() + kSoon).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(UnixChannelTest, ListensWithExactlyTheModeAskedFor) {
  absl::StatusOr<UniqueFd> listener = ListenUnix(Path("s"), SOCK_SEQPACKET, 0666);
  ASSERT_TRUE(listener.ok()) << listener.status();
  struct stat info;
  ASSERT_EQ(stat(Path("s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0666u);
  EXPECT_EQ(fcntl(listener->get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(fcntl(listener->get(), F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  EXPECT_FALSE(std::filesystem::exists(Path("s.lock")));

  absl::StatusOr<UniqueFd> client = ConnectUnix(Path("s"), SOCK_SEQPACKET);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(fcntl(client->get(), F_GETFL) & O_NONBLOCK, 0);
  UniqueFd server(accept(listener->get(), nullptr, nullptr));
  ASSERT_TRUE(SendMessage(client->get(), "hello", {}, absl::Now() + kSoon).ok());
  absl::StatusOr<UnixMessage> message = ReceiveMessage(server.get(), absl::Now() + kSoon);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->bytes, "hello");
}

TEST_F(UnixChannelTest, ReplacesAStaleSocketButNotALiveOne) {
  absl::StatusOr<UniqueFd> first = ListenUnix(Path("s"), SOCK_SEQPACKET, 0600);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(ListenUnix(Path("s"), SOCK_SEQPACKET, 0600).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ListenUnix(Path("s"), SOCK_STREAM, 0600).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(ConnectUnix(Path("s"), SOCK_SEQPACKET).ok());

  first->reset();
  EXPECT_TRUE(std::filesystem::exists(Path("s")));
  absl::StatusOr<UniqueFd> second = ListenUnix(Path("s"), SOCK_SEQPACKET, 0600);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(ConnectUnix(Path("s"), SOCK_SEQPACKET).ok());
}

TEST_F(UnixChannelTest, NeverReplacesAnOrdinaryFile) {
  std::ofstream(Path("s")) << "precious";
  EXPECT_EQ(ListenUnix(Path("s"), SOCK_SEQPACKET, 0600).status().code(),
            absl::StatusCode::kAlreadyExists);
  std::string content;
  std::ifstream(Path("s")) >> content;
  EXPECT_EQ(content, "precious");
}

TEST_F(UnixChannelTest, OfListenersThatStartTogetherOneWins) {
  for (int round = 0; round < 50; ++round) {
    ListenUnix(Path("s"), SOCK_SEQPACKET, 0600).value().reset();  // leaves a stale file
    std::vector<absl::StatusOr<UniqueFd>> results(8);
    std::vector<std::thread> threads;
    for (auto& result : results) {
      threads.emplace_back([&] { result = ListenUnix(Path("s"), SOCK_SEQPACKET, 0600); });
    }
    for (std::thread& thread : threads) thread.join();
    int winners = 0;
    for (const auto& result : results) {
      if (result.ok()) {
        ++winners;
      } else {
        EXPECT_EQ(result.status().code(), absl::StatusCode::kAlreadyExists) << result.status();
      }
    }
    ASSERT_EQ(winners, 1);
    ASSERT_TRUE(ConnectUnix(Path("s"), SOCK_SEQPACKET).ok());
  }
}

TEST_F(UnixChannelTest, ConnectSaysWhatIsWrong) {
  EXPECT_EQ(ConnectUnix(Path("none"), SOCK_SEQPACKET).status().code(),
            absl::StatusCode::kUnavailable);
  ASSERT_TRUE(ListenUnix(Path("stale"), SOCK_SEQPACKET, 0600).ok());
  EXPECT_EQ(ConnectUnix(Path("stale"), SOCK_SEQPACKET).status().code(),
            absl::StatusCode::kUnavailable);
  absl::StatusOr<UniqueFd> stream = ListenUnix(Path("stream"), SOCK_STREAM, 0600);
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ(ConnectUnix(Path("stream"), SOCK_SEQPACKET).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(UnixChannelTest, ConnectHonoursItsDeadlineWhenNobodyAccepts) {
  UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  strcpy(address.sun_path, Path("full").c_str());
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 0), 0);
  std::vector<UniqueFd> waiting;
  absl::Status status;
  while (status.ok()) {
    absl::StatusOr<UniqueFd> client =
        ConnectUnix(Path("full"), SOCK_SEQPACKET, absl::Now() + absl::Milliseconds(20));
    status = client.status();
    if (client.ok()) waiting.push_back(*std::move(client));
    ASSERT_LT(waiting.size(), 10u);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(UnixChannelTest, PathsHaveAtMost107Bytes) {
  const std::string longest = Path(std::string(107 - folder_.size() - 1, 'x'));
  ASSERT_EQ(longest.size(), 107u);
  absl::StatusOr<UniqueFd> listener = ListenUnix(longest, SOCK_SEQPACKET, 0600);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(ConnectUnix(longest, SOCK_SEQPACKET).ok());
  EXPECT_EQ(ListenUnix(longest + "x", SOCK_SEQPACKET, 0600).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ConnectUnix(longest + "x", SOCK_SEQPACKET).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ConnectUnix("", SOCK_SEQPACKET).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace unix_channel_test
}  // namespace gpumem
