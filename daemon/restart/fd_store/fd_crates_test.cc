// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/fd_store/fd_crates.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/restart/fd_store/testing/fd_store_fixture.h"

namespace gpumemd {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A file that can be told from others by its content, as from outside by its size.
UniqueFd FileOf(off_t size) {
  UniqueFd file = NewFile();
  EXPECT_EQ(::ftruncate(file.get(), size), 0);
  return file;
}

off_t SizeOf(const UniqueFd& fd) {
  struct stat info = {};
  EXPECT_EQ(::fstat(fd.get(), &info), 0);
  return info.st_size;
}

// A name is "s" and the size of its file.
off_t SizeIn(const std::string& name) { return std::stoll(name.substr(1)); }
std::string NameOf(off_t size) { return absl::StrCat("s", size); }

class FdCratesTest : public ::testing::Test {
 protected:
  // Acts as the manager: keeps received descriptors.
  void Collect() {
    while (manager_.HasMessage()) {
      Message message = manager_.Receive();
      absl::string_view name = message.text;
      if (absl::ConsumePrefix(&name, "FDSTORE=1\nFDPOLL=0\nFDNAME=")) {
        for (UniqueFd& fd : message.fds) kept_.push_back({std::string(name), std::move(fd)});
      } else if (absl::ConsumePrefix(&name, "FDSTOREREMOVE=1\nFDNAME=")) {
        kept_.erase(std::remove_if(kept_.begin(), kept_.end(),
                                   [&](const NamedFd& one) { return one.name == name; }),
                    kept_.end());
      }
    }
  }
  // Returns the descriptors for the next process.
  std::vector<NamedFd> HandOver() {
    Collect();
    std::vector<NamedFd> copies;
    for (const NamedFd& one : kept_) {
      copies.push_back({one.name, UniqueFd(::fcntl(one.fd.get(), F_DUPFD_CLOEXEC, 3))});
    }
    return copies;
  }
  // The names that the next process finds in the crates; each with its file.
  std::vector<std::string> Found(FdCrates& crates) {
    std::vector<NamedFd> inherited = HandOver();
    absl::StatusOr<std::vector<NamedFd>> found = crates.Adopt(inherited);
    EXPECT_TRUE(found.ok()) << found.status();
    EXPECT_THAT(inherited, IsEmpty());
    std::vector<std::string> names;
    if (!found.ok()) return names;
    for (const NamedFd& one : *found) {
      EXPECT_EQ(SizeOf(one.fd), SizeIn(one.name));
      names.push_back(one.name);
    }
    return names;
  }

  Manager manager_;
  std::vector<NamedFd> kept_;
};

TEST_F(FdCratesTest, WhatIsInThemOutlivesTheProcess) {
  ASSERT_EQ(InChild([&] {
              const std::unique_ptr<FdStore> store = manager_.Start();
              FdCrates crates(*store);
              for (off_t i = 0; i < 100; ++i) {
                if (!crates.Store(NameOf(i), FileOf(i).get()).ok()) return 1;
              }
              for (off_t i = 0; i < 100; i += 3) {
                if (!crates.Remove(NameOf(i)).ok()) return 2;
              }
              if (crates.size() != 66 || crates.crates() != 4) return 3;
              return ::raise(SIGKILL);
            }),
            128 + SIGKILL);
  const std::unique_ptr<FdStore> store = manager_.Start();
  FdCrates crates(*store);
  const std::vector<std::string> names = Found(crates);
  std::set<std::string> wanted;
  for (off_t i = 0; i < 100; ++i) {
    if (i % 3 != 0) wanted.insert(NameOf(i));
  }
  EXPECT_EQ(names.size(), 66);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), wanted);
  EXPECT_EQ(kept_.size(), 8) << "two ends of each crate";

  // It continues with the same crates, and fills them first.
  for (off_t i = 1000; i < 1000 + 128 - 66; ++i) {
    EXPECT_TRUE(crates.Store(NameOf(i), FileOf(i).get()).ok());
  }
  EXPECT_EQ(crates.crates(), 4);
  EXPECT_TRUE(crates.Store("s7000", FileOf(7000).get()).ok());
  EXPECT_EQ(crates.crates(), 5);
  for (const std::string& name : names) EXPECT_TRUE(crates.Remove(name).ok());
  Collect();
  EXPECT_EQ(kept_.size(), 10);
  FdCrates after(*store);
  EXPECT_EQ(Found(after).size(), 128 - 66 + 1);
}

TEST_F(FdCratesTest, WhatIsTakenOutIsGone) {
  const std::unique_ptr<FdStore> store = manager_.Start();
  FdCrates crates(*store);
  // A pipe tells when its last reader is gone.
  std::vector<std::pair<UniqueFd, UniqueFd>> pipes;
  for (int i = 0; i < 20; ++i) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    pipes.emplace_back(ends[0], ends[1]);
    EXPECT_TRUE(crates.Store(absl::StrCat("p", i), ends[0]).ok());
    pipes.back().first.reset();
  }
  const auto is_gone = [&](int i) {
    pollfd writer = {pipes[static_cast<size_t>(i)].second.get(), 0, 0};
    return ::poll(&writer, 1, 0) > 0 && (writer.revents & POLLERR) != 0;
  };
  for (const int i : {13, 0, 19, 7}) {
    EXPECT_FALSE(is_gone(i));
    EXPECT_TRUE(crates.Remove(absl::StrCat("p", i)).ok());
    EXPECT_TRUE(is_gone(i));
    EXPECT_CODE(crates.Remove(absl::StrCat("p", i)), kNotFound);
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(is_gone(i), i == 13 || i == 0 || i == 19 || i == 7);
  }
}

TEST_F(FdCratesTest, RefusesWhatItCouldNotFindAgain) {
  const std::unique_ptr<FdStore> store = manager_.Start();
  FdCrates crates(*store);
  const UniqueFd file = NewFile();
  EXPECT_CODE(crates.Store("", file.get()), kInvalidArgument);
  EXPECT_CODE(crates.Store("!x", file.get()), kInvalidArgument);
  EXPECT_CODE(crates.Store(std::string(256, 'x'), file.get()), kInvalidArgument);
  EXPECT_CODE(crates.Store("s1", -1), kInvalidArgument);
  EXPECT_CODE(crates.Store("s1", 1 << 20), kInvalidArgument);  // not open
  EXPECT_TRUE(crates.Store("s1", file.get()).ok());
  EXPECT_CODE(crates.Store("s1", file.get()), kAlreadyExists);
  EXPECT_TRUE(crates.Remove("s1").ok());
  EXPECT_TRUE(crates.Store("s1", file.get()).ok());
  EXPECT_EQ(crates.size(), 1);
}

TEST_F(FdCratesTest, TakesOnlyItsOwnOfWhatIsHandedOver) {
  const std::unique_ptr<FdStore> store = manager_.Start();
  {
    FdCrates crates(*store);
    EXPECT_TRUE(crates.Store("s5", FileOf(5).get()).ok());
  }
  std::vector<NamedFd> inherited = HandOver();
  inherited.push_back({"j1", NewFile()});
  inherited.push_back({"c9", NewFile()});  // no crate
  inherited.push_back({"crate", NewFile()});
  FdCrates crates(*store);
  const auto found = crates.Adopt(inherited);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->size(), 1);
  std::vector<std::string> left;
  for (const NamedFd& one : inherited) left.push_back(one.name);
  EXPECT_THAT(left, UnorderedElementsAre("j1", "c9", "crate"));
}

TEST_F(FdCratesTest, HalfACrateIsEmptiedIntoAnother) {
  for (const size_t lost : {0, 1}) {
    kept_.clear();
    const std::unique_ptr<FdStore> store = manager_.Start();
    {
      FdCrates crates(*store);
      for (const off_t i : {1, 2, 3}) {
        EXPECT_TRUE(crates.Store(NameOf(i), FileOf(i).get()).ok());
      }
    }
    Collect();
    // The manager was full in the middle of the message.
    kept_.erase(kept_.begin() + static_cast<ptrdiff_t>(lost));
    FdCrates crates(*store);
    const std::vector<std::string> names = Found(crates);
    if (lost == 1) {
      EXPECT_THAT(names, IsEmpty()) << "they were in the other end";
    } else {
      EXPECT_THAT(names, UnorderedElementsAre("s1", "s2", "s3"));
    }
    FdCrates again(*store);
    EXPECT_EQ(Found(again).size(), names.size());
    EXPECT_EQ(kept_.size(), lost == 1 ? 0 : 2);
  }
}

TEST_F(FdCratesTest, WithTooFewDescriptorsNothingIsLost) {
  const std::unique_ptr<FdStore> store = manager_.Start();
  {
    FdCrates crates(*store);
    for (off_t i = 0; i < 60; ++i) {
      EXPECT_TRUE(crates.Store(NameOf(i), FileOf(i).get()).ok());
    }
  }
  Collect();
  EXPECT_EQ(InChild([&] {
              std::vector<NamedFd> inherited = HandOver();
              const UniqueFd next = NewFile();
              rlimit limit = {static_cast<rlim_t>(next.get()) + 40, 4096};
              ::setrlimit(RLIMIT_NOFILE, &limit);
              FdCrates crates(*store);
              return absl::IsResourceExhausted(crates.Adopt(inherited).status()) ? 0 : 1;
            }),
            0);
  FdCrates crates(*store);
  EXPECT_EQ(Found(crates).size(), 60);
}

TEST_F(FdCratesTest, TooManyDescriptorsInQueuesAreRefusedAndTheRestStays) {
  const int code = InChild([&] {
    const std::unique_ptr<FdStore> store = manager_.Start();
    // A user without capabilities, and without other processes.
    const uid_t user = 1'000'000 + static_cast<uid_t>(::getpid());
    if (::setresuid(user, user, user) != 0) return 77;
    const rlimit limit = {100, 100};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    FdCrates crates(*store);
    absl::Status status;
    size_t stored = 0;
    for (; status.ok() && stored < 200; ++stored) {
      status = crates.Store(NameOf(static_cast<off_t>(stored)), NewFile().get());
    }
    if (!absl::IsResourceExhausted(status)) return 1;
    if (crates.size() != stored - 1) return 2;
    // Removed ones make room for others. (The kernel counts a moment later than it answers.)
    for (size_t i = 0; i < 8; ++i) {
      if (!crates.Remove(NameOf(static_cast<off_t>(i))).ok()) return 3;
    }
    return crates.Store("s300", NewFile().get()).ok() ? 0 : 4;
  });
  if (code == 77) GTEST_SKIP() << "being another user takes root";
  EXPECT_EQ(code, 0);
}

TEST_F(FdCratesTest, WithoutAManagerItSaysSo) {
  FdStore nobody;
  FdCrates crates(nobody);
  EXPECT_CODE(crates.Store("s1", STDIN_FILENO), kFailedPrecondition);
  EXPECT_CODE(crates.Remove("s1"), kNotFound);
  std::vector<NamedFd> nothing;
  EXPECT_TRUE(crates.Adopt(nothing).ok());
}

TEST_F(FdCratesTest, ThreadsUseItAtOnce) {
  const std::unique_ptr<FdStore> store = manager_.Start();
  FdCrates crates(*store);
  std::vector<std::thread> threads;
  for (off_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      // Few enough that no crate has to wait for a reader of the socket, whose queue holds 11
      // messages by default (net.unix.max_dgram_qlen).
      for (off_t i = t * 1000; i < t * 1000 + 100; ++i) {
        EXPECT_TRUE(crates.Store(NameOf(i), FileOf(i).get()).ok());
        if (i % 2 == 0) {
          EXPECT_TRUE(crates.Remove(NameOf(i)).ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(crates.size(), 200);
  FdCrates after(*store);
  EXPECT_EQ(Found(after).size(), 200);
}

// Processes that put in and take out, and are killed at any moment, also while they adopt.
TEST_F(FdCratesTest, NothingIsLostAndNothingComesBackWheneverItDies) {
  constexpr off_t kNames = 90;
  // Shared with each process: 1 it is in, 0 it is not, 2 it is being put in or taken out.
  auto* const state = static_cast<std::atomic<int>*>(
      ::mmap(nullptr, kNames * sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::mt19937 chance(20260101);
  int mid_operation = 0;
  for (int round = 0; round < 300; ++round) {
    const unsigned seed = chance();
    std::vector<NamedFd> inherited = HandOver();
    int ready[2];
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::mt19937 local(seed);
      (void)!::write(ready[1], "x", 1);
      const std::unique_ptr<FdStore> store = manager_.Start();
      FdCrates crates(*store);
      if (!crates.Adopt(inherited).ok()) ::_exit(1);
      for (int i = 0; i < 100'000; ++i) {
        const auto which = static_cast<off_t>(local() % kNames);
        std::atomic<int>& one = state[which];
        const bool is_in = one == 1;
        one = 2;
        const absl::Status done =
            is_in ? crates.Remove(NameOf(which)) : crates.Store(NameOf(which), FileOf(which).get());
        if (!done.ok()) ::_exit(2);
        one = is_in ? 0 : 1;
      }
      ::_exit(3);
    }
    char byte;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
    ::usleep(chance() % 4000);  // when it dies; nothing waits for it
    ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself with " << WEXITSTATUS(status);

    const std::unique_ptr<FdStore> store = manager_.Start();
    FdCrates crates(*store);
    inherited.clear();
    const std::vector<std::string> names = Found(crates);
    const std::set<std::string> unique(names.begin(), names.end());
    EXPECT_EQ(unique.size(), names.size());
    for (off_t i = 0; i < kNames; ++i) {
      const bool is_in = unique.count(NameOf(i)) == 1;
      if (state[i] == 2) {
        ++mid_operation;  // it may or may not have happened
        state[i] = is_in;
      }
      EXPECT_EQ(state[i] == 1, is_in) << NameOf(i) << " in round " << round;
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(mid_operation, 30) << "the test was too kind";
  EXPECT_LE(kept_.size(), 2 * (kNames / FdCrates::kCrateSize + 1));
  ::munmap(state, kNames * sizeof(std::atomic<int>));
}

}  // namespace
}  // namespace gpumemd
