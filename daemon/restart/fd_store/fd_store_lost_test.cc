// SPDX-License-Identifier: Apache-2.0
// FdStore without its service manager: the manager ends, or was never there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "daemon/restart/fd_store/fd_store.h"
#include "daemon/restart/fd_store/testing/fd_store_fixture.h"

namespace gpumemd {
namespace fd_store_lost_test {

constexpr absl::Duration kLong = absl::Seconds(60);

TEST(FdStoreLostTest, ASendWithoutAManagerCallsTheWatchOnce) {
  Manager manager;
  const std::unique_ptr<FdStore> store = manager.Start();
  int calls = 0;
  absl::Notification told;
  ASSERT_TRUE(store
                  ->Watch([&](const absl::Status& why) {
                    EXPECT_CODE(why, kUnavailable);
                    if (++calls == 1) told.Notify();
                  })
                  .ok());
  manager.Leave();
  EXPECT_CODE(store->Store("s1", STDIN_FILENO), kUnavailable);
  EXPECT_TRUE(store->lost());
  EXPECT_CODE(store->Remove("s1"), kUnavailable);
  EXPECT_CODE(store->Barrier(), kUnavailable);
  EXPECT_CODE(store->NotifyStopping("x"), kUnavailable);
  EXPECT_TRUE(told.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(calls, 1);
}

TEST(FdStoreLostTest, AStoppedWatchIsNotCalled) {
  Manager manager;
  const std::unique_ptr<FdStore> store = manager.Start();
  auto listener = std::make_unique<int>(0);
  ASSERT_TRUE(store->Watch([&](const absl::Status&) { ++*listener; }).ok());
  store->StopWatching();
  EXPECT_EQ(*listener, 0);
  listener.reset();
  manager.Leave();
  EXPECT_CODE(store->Store("s1", STDIN_FILENO), kUnavailable);
  store->StopWatching();  // once more is no harm
}

TEST(FdStoreLostTest, ACallThatWaitsForRoomIsWoken) {
  Manager manager;
  const std::unique_ptr<FdStore> store = manager.Start();
  while (store->Store("s1", STDIN_FILENO, absl::ZeroDuration()).ok()) {
  }
  std::thread waiter([&] { EXPECT_CODE(store->Store("s1", STDIN_FILENO, kLong), kUnavailable); });
  manager.Leave();
  waiter.join();
}

TEST(FdStoreLostTest, AManagerThatWasNeverThereIsLostFromTheStart) {
  ::setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
  const auto store = FdStore::FromEnvironment();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->present());
  EXPECT_TRUE((*store)->lost());
  EXPECT_CODE((*store)->Store("s1", STDIN_FILENO), kUnavailable);
  absl::Notification told;
  ASSERT_TRUE((*store)->Watch([&](const absl::Status&) { told.Notify(); }).ok());
  EXPECT_TRUE(told.WaitForNotificationWithTimeout(kLong));
}

TEST(FdStoreLostTest, TheKeepersEndIsNoticedAtOnce) {
  const Manager manager;
  int report[2];
  ASSERT_EQ(::pipe2(report, O_CLOEXEC), 0);
  const UniqueFd ours(report[0]);
  UniqueFd theirs(report[1]);
  // A keeper that ends when its child says that it is watched.
  const pid_t keeper = ::fork();
  if (keeper == 0) {
    int ready[2];
    if (::pipe(ready) != 0) ::_exit(1);
    ::setenv("GPUMEM_KEEPER_PID", absl::StrCat(::getpid()).c_str(), 1);
    if (::fork() == 0) {
      const std::unique_ptr<FdStore> store = manager.Start();
      absl::Notification told;
      std::string why;
      (void)store->Watch([&](const absl::Status& status) {
        why = std::string(status.message());
        told.Notify();
      });
      const bool before = store->lost();
      (void)!::write(ready[1], "x", 1);
      told.WaitForNotification();
      const std::string said = absl::StrCat(before ? "too early " : "", why);
      (void)!::write(theirs.get(), said.data(), said.size());
      ::_exit(0);
    }
    char byte;
    ::_exit(::read(ready[0], &byte, 1) == 1 ? 0 : 1);
  }
  ::waitpid(keeper, nullptr, 0);
  theirs.reset();
  char said[256];
  const ssize_t size = ::read(ours.get(), said, sizeof(said));
  EXPECT_EQ(std::string(said, static_cast<size_t>(std::max<ssize_t>(size, 0))),
            "gpumem-keeper has ended");
}

TEST(FdStoreLostTest, AKeeperThatIsNotTheParentIsLost) {
  const Manager manager;
  // It lives, but is not the parent: a keeper's number that was given out again.
  ::setenv("GPUMEM_KEEPER_PID", absl::StrCat(::getpid()).c_str(), 1);
  EXPECT_TRUE(manager.Start()->lost());
}

}  // namespace fd_store_lost_test
}  // namespace gpumemd
