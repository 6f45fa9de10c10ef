// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/fd_store/fd_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "daemon/restart/fd_store/testing/fd_store_fixture.h"

namespace gpumemd {
namespace fd_store_test {

using ::testing::ElementsAre;

constexpr absl::Duration kLong = absl::Seconds(60);

TEST(FdStoreTest, StoresByPathAndByAbstractName) {
  for (const bool is_abstract : {false, true}) {
    const Manager manager(is_abstract);
    const std::unique_ptr<FdStore> store = manager.Start();
    EXPECT_FALSE(store->capacity().has_value());
    const UniqueFd file = NewFile();
    ASSERT_TRUE(store->Store("s2Bz", file.get()).ok());
    const Message message = manager.Receive();
    EXPECT_EQ(message.text, "FDSTORE=1\nFDPOLL=0\nFDNAME=s2Bz");
    ASSERT_EQ(message.fds.size(), 1);
    EXPECT_EQ(Inode(message.fds[0].get()), Inode(file.get()));
  }
}

TEST(FdStoreTest, WhatIsStoredOutlivesTheProcess) {
  const Manager manager;
  ASSERT_EQ(InChild([&] {
              const std::unique_ptr<FdStore> store = manager.Start();
              const UniqueFd file = NewFile();
              if (::write(file.get(), "precious", 8) != 8) return 1;
              if (!store->Store("s1", file.get()).ok()) return 2;
              return ::raise(SIGKILL);
            }),
            128 + SIGKILL);
  const Message message = manager.Receive();
  ASSERT_EQ(message.fds.size(), 1);
  char bytes[8] = {};
  EXPECT_EQ(::pread(message.fds[0].get(), bytes, 8, 0), 8);
  EXPECT_EQ(std::string(bytes, 8), "precious");
}

TEST(FdStoreTest, ManyOfOneNameTakeAMessageFor253) {
  const Manager manager;
  const std::unique_ptr<FdStore> store = manager.Start();
  std::vector<UniqueFd> files;
  std::vector<int> fds;
  for (int i = 0; i < 600; ++i) fds.push_back(files.emplace_back(NewFile()).get());
  ASSERT_TRUE(store->Store("s", fds).ok());
  std::vector<size_t> counts;
  size_t next = 0;
  while (manager.HasMessage()) {
    const Message message = manager.Receive();
    EXPECT_TRUE(absl::EndsWith(message.text, "FDNAME=s")) << message.text;
    for (const UniqueFd& fd : message.fds) EXPECT_EQ(Inode(fd.get()), Inode(fds[next++]));
    counts.push_back(message.fds.size());
  }
  EXPECT_THAT(counts, ElementsAre(253, 253, 94));
}

TEST(FdStoreTest, RefusesWhatTheManagerWouldNotTake) {
  const Manager manager;
  const std::unique_ptr<FdStore> store = manager.Start();
  for (const std::string& name : {std::string(), std::string("a:b"), std::string("a\nREADY=1"),
                                  std::string("\xc3\xa9"), std::string(256, 'a')}) {
    EXPECT_CODE(store->Store(name, STDIN_FILENO), kInvalidArgument);
    EXPECT_CODE(store->Remove(name), kInvalidArgument);
  }
  EXPECT_CODE(store->Store("s1", -1), kInvalidArgument);
  EXPECT_FALSE(manager.HasMessage());
  EXPECT_FALSE(store->lost());
  EXPECT_TRUE(store->Store(std::string(255, 'a'), STDIN_FILENO).ok());
}

TEST(FdStoreTest, SaysWhatStateItIsIn) {
  const Manager manager;
  const std::unique_ptr<FdStore> store = manager.Start();
  ASSERT_TRUE(store->NotifyReady("ready:\n2 GPUs").ok());
  EXPECT_EQ(manager.Receive().text, "READY=1\nSTATUS=ready: 2 GPUs");
  ASSERT_TRUE(store->NotifyAlive("well").ok());
  EXPECT_EQ(manager.Receive().text, "WATCHDOG=1\nSTATUS=well");
  ASSERT_TRUE(store->NotifyAlive("").ok());
  EXPECT_EQ(manager.Receive().text, "WATCHDOG=1");
  ASSERT_TRUE(store->NotifyStopping("bye").ok());
  EXPECT_EQ(manager.Receive().text, "STOPPING=1\nSTATUS=bye");
  ASSERT_TRUE(store->NotifyReloading().ok());
  EXPECT_THAT(manager.Receive().text,
              ::testing::MatchesRegex("RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]+"));
}

TEST(FdStoreTest, AManagerThatDoesNotReadFailsTheCallAtItsDeadline) {
  const Manager manager;
  const std::unique_ptr<FdStore> store = manager.Start();
  const UniqueFd file = NewFile();
  absl::Status status;
  int stored = 0;
  for (; status.ok(); ++stored) status = store->Store("s1", file.get(), absl::Milliseconds(20));
  EXPECT_CODE(status, kDeadlineExceeded);
  EXPECT_FALSE(store->lost());
  const absl::Time before = absl::Now();
  EXPECT_CODE(store->NotifyAlive("well"), kDeadlineExceeded);
  EXPECT_LT(absl::Now() - before, FdStore::kTimeout);

  // A free place in the queue wakes its waiter.
  absl::Status late;
  std::thread sender([&] { late = store->Store("s1", file.get(), kLong); });
  int received = 0;
  for (; received < stored; ++received) (void)manager.Receive();  // the one above among them
  sender.join();
  EXPECT_TRUE(late.ok()) << late;
  EXPECT_FALSE(manager.HasMessage());
}

TEST(FdStoreTest, ABarrierWaitsForTheManager) {
  const Manager manager;
  const std::unique_ptr<FdStore> store = manager.Start();
  EXPECT_CODE(store->Barrier(absl::Milliseconds(20)), kDeadlineExceeded);
  (void)manager.Receive();
  std::thread waiter([&] { EXPECT_TRUE(store->Barrier(kLong).ok()); });
  Message message = manager.Receive();
  EXPECT_EQ(message.text, "BARRIER=1");
  ASSERT_EQ(message.fds.size(), 1);
  message.fds.clear();
  waiter.join();
}

TEST(FdStoreTest, RemovesManyAndWaitsForAll) {
  const Manager manager;
  const std::unique_ptr<FdStore> store = manager.Start();
  std::vector<std::string> names;
  for (int i = 0; i < 150; ++i) names.push_back(absl::StrCat("s", i));
  absl::Notification done;
  std::thread remover([&] {
    EXPECT_TRUE(store->RemoveAndWait(names, kLong).ok());
    done.Notify();
  });
  size_t removed = 0;
  int barriers = 0;
  while (removed < names.size() || barriers < 3) {
    const Message message = manager.Receive();
    if (message.text == "BARRIER=1") {
      ++barriers;
      EXPECT_FALSE(done.HasBeenNotified());
    } else {
      EXPECT_EQ(message.text, absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", names[removed++]));
    }
  }
  remover.join();
  EXPECT_FALSE(manager.HasMessage());
}

TEST(FdStoreTest, FindsOutWhetherTheManagerKeepsWhatItGets) {
  for (const bool keeps : {true, false}) {
    const Manager manager;
    const std::unique_ptr<FdStore> store = manager.Start();
    absl::Status room;
    std::thread asker([&] { room = store->CheckRoom(kLong); });
    Message probe = manager.Receive();
    EXPECT_EQ(probe.text, "FDSTORE=1\nFDPOLL=0\nFDNAME=probe");
    if (!keeps) probe.fds.clear();
    EXPECT_EQ(manager.Receive().text, "BARRIER=1");
    EXPECT_EQ(manager.Receive().text, "FDSTOREREMOVE=1\nFDNAME=probe");
    asker.join();
    EXPECT_EQ(room.code(), keeps ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted)
        << room;
  }
}

TEST(FdStoreTest, ThreadsStoreAtOnce) {
  const Manager manager;
  const std::unique_ptr<FdStore> store = manager.Start();
  constexpr int kThreads = 4, kEach = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const UniqueFd file = NewFile();
      for (int i = 0; i < kEach; ++i) {
        EXPECT_TRUE(store->Store(absl::StrCat("s", t * kEach + i), file.get(), kLong).ok());
      }
    });
  }
  std::set<std::string> texts;
  for (int i = 0; i < kThreads * kEach; ++i) {
    const Message message = manager.Receive();
    EXPECT_EQ(message.fds.size(), 1);
    texts.insert(message.text);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(texts.size(), kThreads * kEach);
  EXPECT_FALSE(manager.HasMessage());
}

TEST(FdStoreTest, NoDescriptorIsLeftOpen) {
  const int before = OpenDescriptors();
  {
    const Manager manager;
    const std::unique_ptr<FdStore> store = manager.Start();
    ASSERT_TRUE(store->Watch([](const absl::Status&) {}).ok());
    for (int i = 0; i < 1000; ++i) {
      EXPECT_TRUE(store->Store("s1", STDIN_FILENO).ok());
      EXPECT_CODE(store->Barrier(absl::ZeroDuration()), kDeadlineExceeded);
      (void)manager.Receive();
      (void)manager.Receive();
    }
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace fd_store_test
}  // namespace gpumemd
