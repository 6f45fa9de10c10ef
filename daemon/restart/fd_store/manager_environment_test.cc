// SPDX-License-Identifier: Apache-2.0
// FdStore::FromEnvironment(): descriptors, variables and limits from the service manager.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/restart/fd_store/fd_store.h"
#include "daemon/restart/fd_store/testing/fd_store_fixture.h"

namespace gpumemd {
namespace manager_environment_test {

using ::testing::HasSubstr;

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
  EXPECT_THAT(listen(self.c_str(), "4294967295", "a"), HasSubstr("not a number of descriptors"));
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
  EXPECT_THAT(message([] { ::setenv("NOTIFY_SOCKET", "/", 1); }), HasSubstr("not an address"));
  EXPECT_THAT(message([] { ::setenv("NOTIFY_SOCKET", std::string(108, '/').c_str(), 1); }),
              HasSubstr("at most 107"));
}

TEST(FdStoreEnvironmentTest, WithoutAManagerNotificationsAreDroppedAndDescriptorsRefused) {
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

}  // namespace manager_environment_test
}  // namespace gpumemd
