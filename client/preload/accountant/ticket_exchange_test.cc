// SPDX-License-Identifier: Apache-2.0
#include "client/preload/accountant/ticket_exchange.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gpumem::preload {
namespace {

TicketExchange& Exchange() {
  static auto* const exchange = new TicketExchange;
  return *exchange;
}

// Skips a test whose child starts threads. Returns true if it did.
bool SkipsForks() {
#if defined(__SANITIZE_THREAD__)
  [] { GTEST_SKIP() << "under the thread sanitizer the child of threads starts none"; }();
  return true;
#else
  return false;
#endif
}

TEST(TicketExchangeTest, TellsATicketOfAnyLength) {
  for (const size_t length : {size_t{1}, size_t{200}, size_t{48} << 10}) {
    const std::string ticket(length, 'x');
    const auto handle = Exchange().Offer(0x1000 * length, ticket);
    ASSERT_TRUE(handle.ok()) << handle.status();
    EXPECT_TRUE(TicketExchange::IsOurs(*handle));
    const auto fetched = TicketExchange::Fetch(*handle);
    ASSERT_TRUE(fetched.ok()) << fetched.status();
    EXPECT_EQ(*fetched, ticket);
  }
}

TEST(TicketExchangeTest, GivesOneHandleForABlockUntilItIsWithdrawn) {
  const auto first = Exchange().Offer(1, "a");
  const auto again = Exchange().Offer(1, "a");
  const auto other = Exchange().Offer(2, "b");
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  EXPECT_EQ(std::memcmp(&*first, &*again, sizeof(*first)), 0);
  EXPECT_NE(std::memcmp(&*first, &*other, sizeof(*first)), 0);
  Exchange().Withdraw(1);
  Exchange().Withdraw(1);
  EXPECT_EQ(TicketExchange::Fetch(*first).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*TicketExchange::Fetch(*other), "b");
  const auto later = Exchange().Offer(1, "c");
  ASSERT_TRUE(later.ok());
  EXPECT_NE(std::memcmp(&*first, &*later, sizeof(*first)), 0) << "another block has the address";
}

TEST(TicketExchangeTest, AHandleEndsWithItsProcess) {
  if (SkipsForks()) return;
  int channel[2];
  ASSERT_EQ(pipe(channel), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto handle = (new TicketExchange)->Offer(1, "of the child");
    if (!handle.ok() || write(channel[1], &*handle, sizeof(*handle)) != sizeof(*handle)) _exit(1);
    pause();
  }
  GpumemIpcHandle handle;
  ASSERT_EQ(read(channel[0], &handle, sizeof(handle)), static_cast<ssize_t>(sizeof(handle)));
  EXPECT_EQ(*TicketExchange::Fetch(handle), "of the child");
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(TicketExchange::Fetch(handle).status().code(), absl::StatusCode::kNotFound);
  close(channel[0]);
  close(channel[1]);
}

TEST(TicketExchangeTest, TellsOtherUsersNothing) {
  if (SkipsForks()) return;
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  // Two users below root: the server's and another.
  int channel[2];
  ASSERT_EQ(pipe(channel), 0);
  const pid_t server = fork();
  if (server == 0) {
    close(channel[0]);
    if (setuid(65533) != 0) _exit(0);
    const auto offered = (new TicketExchange)->Offer(1, "of a user");
    if (!offered.ok() || write(channel[1], &*offered, sizeof(*offered)) < 0) _exit(1);
    pause();
  }
  close(channel[1]);
  GpumemIpcHandle of_user;
  const ssize_t heard = read(channel[0], &of_user, sizeof(of_user));
  if (heard != static_cast<ssize_t>(sizeof(of_user))) {
    waitpid(server, nullptr, 0);
    close(channel[0]);
    GTEST_SKIP() << "there is one user alone here, as in a user namespace";
  }
  const auto fetches = [&](uid_t uid) {
    const pid_t child = fork();
    if (child == 0) {
      if (setuid(uid) != 0) _exit(2);
      _exit(TicketExchange::Fetch(of_user).ok() ? 1 : 0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(fetches(65533), 1);
  EXPECT_EQ(fetches(65534), 0);
  kill(server, SIGKILL);
  ASSERT_EQ(waitpid(server, nullptr, 0), server);
  close(channel[0]);
}

TEST(TicketExchangeTest, ServesOthersBesideAPeerThatSaysNothing) {
  const auto handle = Exchange().Offer(3, "c");
  ASSERT_TRUE(handle.ok());
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name =
      absl::StrCat("gpumem-ipc-",
                   absl::BytesToHexString({reinterpret_cast<const char*>(handle->bytes) + 8, 16}));
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const int silent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(silent, reinterpret_cast<const sockaddr*>(&address),
                    static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
            0);
  absl::StatusOr<std::string> fetched;
  // The first may come before the silent peer's second has passed.
  for (int i = 0; i < 5 && !fetched.ok(); ++i) fetched = TicketExchange::Fetch(*handle);
  EXPECT_TRUE(fetched.ok()) << fetched.status();
  close(silent);
}

TEST(TicketExchangeTest, ManyAskAtOnce) {
  std::vector<std::thread> threads;
  std::vector<int> right(4, 0);
  for (size_t t = 0; t < right.size(); ++t) {
    threads.emplace_back([t, &right] {
      const std::string ticket = absl::StrCat("ticket ", t);
      for (uint64_t i = 0; i < 50; ++i) {
        const uint64_t base = 1000 + 100 * t + i;
        const auto handle = Exchange().Offer(base, ticket);
        const auto fetched = TicketExchange::Fetch(*handle);
        right[t] += fetched.ok() && *fetched == ticket ? 1 : 0;
        Exchange().Withdraw(base);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, std::vector<int>(4, 50));
}

TEST(TicketExchangeTest, TellsOthersHandlesApart) {
  GpumemIpcHandle handle = {};
  EXPECT_FALSE(TicketExchange::IsOurs(handle));
  for (unsigned char& byte : handle.bytes) byte = 0xff;
  EXPECT_FALSE(TicketExchange::IsOurs(handle));
}

}  // namespace
}  // namespace gpumem::preload
