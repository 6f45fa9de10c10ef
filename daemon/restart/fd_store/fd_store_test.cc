#include "daemon/restart/fd_store/fd_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "daemon/restart/fd_store/testing/fd_store_fixture.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

// In a child: makes descriptors 3, 4, … new files, and sets the environment as if they were handed
// over. Returns their inodes.
std::vector<ino_t> HandOver(int count, const std::string& names, pid_t to) {
  std::vector<ino_t> inodes;
  for (int fd = 3; fd < 3 + count; ++fd) {
    ::close(fd);
    const UniqueFd file(::memfd_create("test", 0));
    if (file.get() == fd) {
      ::fcntl(const_cast<UniqueFd&>(file).release(), F_SETFD, 0);
    } else {
      ::dup2(file.get(), fd);
    }
    inodes.push_back(Inode(fd));
  }
  ::setenv("LISTEN_PID", absl::StrCat(to).c_str(), 1);
  ::setenv("LISTEN_FDS", absl::StrCat(count).c_str(), 1);
  if (!names.empty()) ::setenv("LISTEN_FDNAMES", names.c_str(), 1);
  return inodes;
}

// --- What the environment says ---------------------------------------------------------

TEST(FdStoreEnvironmentTest, DescriptorsComeOnceByTheirNames) {
  EXPECT_EQ(InChild([] {
              const std::vector<ino_t> inodes = HandOver(3, "s1:j2:s1", ::getpid());
              const auto store = FdStore::FromEnvironment();
              if (!store.ok()) return 1;
              std::vector<NamedFd> fds = (*store)->TakeInherited();
              if (fds.size() != 3) return 2;
              if (fds[0].name != "s1" || fds[1].name != "j2" || fds[2].name != "s1") return 3;
              for (size_t i = 0; i < 3; ++i) {
                if (Inode(fds[i].fd.get()) != inodes[i]) return 4;
                if ((::fcntl(fds[i].fd.get(), F_GETFD) & FD_CLOEXEC) == 0) return 5;
              }
              if (!(*store)->TakeInherited().empty()) return 6;
              fds.clear();
              return ::fcntl(4, F_GETFD) < 0 ? 0 : 7;  // they were ours to close
            }),
            0);
}

TEST(FdStoreEnvironmentTest, NothingOfItIsLeftForChildren) {
  EXPECT_EQ(
      InChild([] {
        HandOver(1, "s1", ::getpid());
        const Manager manager;
        ::setenv("NOTIFY_SOCKET", manager.address().c_str(), 1);
        ::setenv("FDSTORE", "4096", 1);
        ::setenv("GPUMEM_KEEPER_PID", absl::StrCat(::getppid()).c_str(), 1);
        ::setenv("WATCHDOG_USEC", "30000000", 1);
        ::setenv("WATCHDOG_PID", absl::StrCat(::getpid()).c_str(), 1);
        const auto store = FdStore::FromEnvironment();
        if (!store.ok() || (*store)->capacity() != 4096u || !(*store)->present()) return 1;
        if ((*store)->keeper_pid() != ::getppid() || (*store)->lost()) return 2;
        if ((*store)->watchdog() != absl::Seconds(30)) return 4;
        for (const char* name : {"NOTIFY_SOCKET", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES",
                                 "FDSTORE", "GPUMEM_KEEPER_PID", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
          if (::getenv(name) != nullptr) return 3;
        }
        return 0;
      }),
      0);
}

// Of a daemon that was killed while it asked for room. Were it removed later, so would be the probe
// of this process, which would take that for a refusal.
TEST(FdStoreEnvironmentTest, AnothersProbeIsRemovedBeforeItCanBeMistaken) {
  EXPECT_EQ(InChild([] {
              HandOver(2, "probe:s1", ::getpid());
              const Manager manager;
              ::setenv("NOTIFY_SOCKET", manager.address().c_str(), 1);
              const auto store = FdStore::FromEnvironment();
              if (!store.ok()) return 1;
              const std::vector<NamedFd> fds = (*store)->TakeInherited();
              if (fds.size() != 1 || fds[0].name != "s1") return 2;
              if (!manager.HasMessage()) return 3;
              return manager.Receive().text == "FDSTOREREMOVE=1\nFDNAME=probe" ? 0 : 4;
            }),
            0);
}

TEST(FdStoreEnvironmentTest, WhatWasMeantForAnotherProcessStaysAlone) {
  EXPECT_EQ(InChild([] {
              HandOver(2, "a:b", ::getppid());
              const auto store = FdStore::FromEnvironment();
              if (!store.ok() || !(*store)->TakeInherited().empty()) return 1;
              if (::fcntl(3, F_GETFD) != 0 || ::getenv("LISTEN_FDS") != nullptr) return 2;
              return 0;
            }),
            0);
}

TEST(FdStoreEnvironmentTest, AnothersWatchdogIsNotAnswered) {
  EXPECT_EQ(InChild([] {
              ::setenv("WATCHDOG_USEC", "30000000", 1);
              ::setenv("WATCHDOG_PID", absl::StrCat(::getppid()).c_str(), 1);
              const auto store = FdStore::FromEnvironment();
              if (!store.ok() || (*store)->watchdog().has_value()) return 1;
              return ::getenv("WATCHDOG_USEC") == nullptr ? 0 : 2;
            }),
            0);
}

TEST(FdStoreEnvironmentTest, SocketsThatListenAreNotAmongWhatWasStored) {
  EXPECT_EQ(InChild([] {
              const std::vector<ino_t> inodes = HandOver(4, "session:s1:api:s2", ::getpid());
              // The third has a peer and does not listen: a crate.
              int ends[2];
              const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM, 0));
              const sockaddr_un nameless = {.sun_family = AF_UNIX};
              if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&nameless),
                         sizeof(sa_family_t)) != 0 ||
                  ::listen(listener.get(), 1) != 0 ||
                  ::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) {
                return 1;
              }
              ::dup2(listener.get(), 3);
              ::dup2(ends[0], 5);
              const auto store = FdStore::FromEnvironment();
              if (!store.ok()) return 2;
              const std::vector<NamedFd> listeners = (*store)->TakeListeners();
              if (listeners.size() != 1 || listeners[0].name != "session") return 3;
              if (listeners[0].fd.get() != 3) return 4;
              const std::vector<NamedFd> stored = (*store)->TakeInherited();
              if (stored.size() != 3 || stored[0].name != "s1" || stored[1].name != "api") return 5;
              if (Inode(stored[0].fd.get()) != inodes[1]) return 6;
              return (*store)->TakeListeners().empty() ? 0 : 7;
            }),
            0);
}

TEST(FdStoreEnvironmentTest, ContradictionsAreNamed) {
  const auto message = [](const std::function<void()>& set) {
    set();
    const absl::Status status = FdStore::FromEnvironment().status();
    EXPECT_CODE(status, kInvalidArgument);
    return std::string(status.message());
  };
  const std::string self = absl::StrCat(::getpid());
  const auto listen = [&](const char* pid, const char* count, const char* names) {
    return message([&] {
      ::setenv("LISTEN_PID", pid, 1);
      ::setenv("LISTEN_FDS", count, 1);
      ::setenv("LISTEN_FDNAMES", names, 1);
    });
  };
  EXPECT_THAT(listen("me", "1", "a"), HasSubstr("LISTEN_PID is \"me\""));
  EXPECT_THAT(listen(self.c_str(), "-1", "a"), HasSubstr("LISTEN_FDS is \"-1\""));
  EXPECT_THAT(listen(self.c_str(), "4294967295", "a"), HasSubstr("no number of descriptors"));
  EXPECT_THAT(listen(self.c_str(), "2", "a"), HasSubstr("not one for each of 2"));
  EXPECT_THAT(listen(self.c_str(), "3", "a:b:c:d"), HasSubstr("not one for each of 3"));
  EXPECT_THAT(listen(self.c_str(), "100000", std::string(99999, ':').c_str()),
              HasSubstr("is not open"));
  EXPECT_THAT(message([] { ::setenv("FDSTORE", "many", 1); }), HasSubstr("FDSTORE is \"many\""));
  EXPECT_THAT(message([] { ::setenv("WATCHDOG_USEC", "0", 1); }),
              HasSubstr("WATCHDOG_USEC is \"0\""));
  EXPECT_THAT(message([] { ::setenv("GPUMEM_KEEPER_PID", "0", 1); }),
              HasSubstr("GPUMEM_KEEPER_PID is \"0\""));
  EXPECT_THAT(message([] { ::setenv("NOTIFY_SOCKET", "relative", 1); }), HasSubstr("\"relative\""));
  EXPECT_THAT(message([] { ::setenv("NOTIFY_SOCKET", "/", 1); }), HasSubstr("no address"));
  EXPECT_THAT(message([] { ::setenv("NOTIFY_SOCKET", std::string(108, '/').c_str(), 1); }),
              HasSubstr("at most 107"));
}

TEST(FdStoreEnvironmentTest, WithoutAManagerWordsGoToNobodyAndDescriptorsNowhere) {
  const auto store = FdStore::FromEnvironment();
  ASSERT_TRUE(store.ok());
  EXPECT_FALSE((*store)->present());
  EXPECT_FALSE((*store)->capacity().has_value());
  EXPECT_TRUE((*store)->NotifyReady("up").ok());
  EXPECT_TRUE((*store)->Watch([](const absl::Status&) { FAIL(); }).ok());
  EXPECT_CODE((*store)->Store("s1", STDIN_FILENO), kFailedPrecondition);
  EXPECT_CODE((*store)->Remove("s1"), kFailedPrecondition);
  EXPECT_CODE((*store)->Barrier(), kFailedPrecondition);
  EXPECT_CODE((*store)->CheckRoom(), kFailedPrecondition);
}

// --- Messages --------------------------------------------------------------------------

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
  ASSERT_TRUE(store->NotifyStatus("busy").ok());
  EXPECT_EQ(manager.Receive().text, "STATUS=busy");
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

TEST(FdStoreTest, AManagerThatDoesNotReadCostsAMomentAndNoMore) {
  const Manager manager;
  const std::unique_ptr<FdStore> store = manager.Start();
  const UniqueFd file = NewFile();
  absl::Status status;
  int stored = 0;
  for (; status.ok(); ++stored) status = store->Store("s1", file.get(), absl::Milliseconds(20));
  EXPECT_CODE(status, kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not read"));
  EXPECT_FALSE(store->lost());
  const absl::Time before = absl::Now();
  EXPECT_CODE(store->NotifyAlive("well"), kDeadlineExceeded);
  EXPECT_LT(absl::Now() - before, FdStore::kPatience);

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

// --- A manager that goes ---------------------------------------------------------------

TEST(FdStoreLostTest, ASendThatFindsNobodyTellsOnce) {
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
  EXPECT_CODE(store->NotifyStatus("x"), kUnavailable);
  EXPECT_TRUE(told.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(calls, 1);
}

TEST(FdStoreLostTest, NobodyIsToldWhoDoesNotListenAnyMore) {
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

TEST(FdStoreLostTest, OneThatWaitsForRoomIsWoken) {
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

TEST(FdStoreLostTest, AKeeperThatEndedBeforeIsLost) {
  const Manager manager;
  // It lives, but is not the parent: a keeper's number that was given out again.
  ::setenv("GPUMEM_KEEPER_PID", absl::StrCat(::getpid()).c_str(), 1);
  EXPECT_TRUE(manager.Start()->lost());
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

}  // namespace
}  // namespace gpumemd
