// SPDX-License-Identifier: Apache-2.0
// A client in a process that forks, has many threads, or ends.
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/testing/fake_daemon.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace {

using internal::FakeDaemon;
using internal::OpenFds;

constexpr uint64_t kBytes = 64 * 1024;

std::unique_ptr<Client> ConnectTo(const FakeDaemon& daemon) {
  return Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = absl::Seconds(20)})
      .value();
}

// True if a segment of the fake daemon is mapped there, and not other memory of the process that
// has the address by now.
bool IsSegmentMapped(const void* address) {
  const std::string begin = absl::StrCat(absl::Hex(reinterpret_cast<uintptr_t>(address)), "-");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (absl::StartsWith(line, begin)) return absl::StrContains(line, "/memfd:segment");
  }
  return false;
}

// Threads that lock mutexes all the time, as gRPC's threads sometimes do.
class BusyLocks {
 public:
  BusyLocks() {
    for (std::thread& thread : threads_) {
      thread = std::thread([this] {
        while (!stop_) absl::MutexLock lock(&mutex_);
      });
    }
  }
  ~BusyLocks() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  absl::Mutex mutex_;
  std::array<std::thread, 4> threads_;
};

TEST(ClientTest, AForkedChildEndsWhateverThreadsDidAtTheFork) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  const BusyLocks busy;
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      segment = Segment();
      client.reset();
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "child " << i;
  }
}

TEST(ClientTest, AForkedChildIsToldAndDisturbsNothing) {
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  Segment segment = client->Acquire({.bytes = kBytes}).value();
  const int releases = daemon.release_calls();
  const pid_t child = fork();
  if (child == 0) {
    constexpr auto kWrong = absl::StatusCode::kFailedPrecondition;
    int failed = 0;
    failed += client->Acquire({.bytes = kBytes}).status().code() != kWrong;
    failed += client->Open("gmt_" + std::string(43, 'A')).status().code() != kWrong;
    failed += client->GetUsage().status().code() != kWrong;
    failed += client->Devices().status().code() != kWrong;
    failed += segment.Share().status().code() != kWrong;
    failed += Client::Connect({.runtime_dir = daemon.runtime_dir()}).status().code() != kWrong;
    memset(segment.data(), 9, segment.size());
    void* const data = segment.data();
    failed += !IsSegmentMapped(data);
    segment = Segment();
    failed += IsSegmentMapped(data);
    client.reset();
    _exit(failed);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(*static_cast<char*>(segment.data()), 9);
  EXPECT_EQ(daemon.release_calls(), releases);
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_TRUE(segment.Release().ok());
}

TEST(ClientTest, ThreadsShareAClientWithoutLeaks) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 200;
  FakeDaemon daemon;
  auto client = ConnectTo(daemon);
  const auto work = [&](int rounds) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t, rounds] {
        for (int i = 0; i < rounds; ++i) {
          absl::StatusOr<std::vector<Segment>> segments =
              client->AcquireMany({.bytes = FakeDaemon::kGranularity}, 1 + t % 3);
          ASSERT_TRUE(segments.ok()) << segments.status();
          for (Segment& segment : *segments) {
            // No other thread has it.
            ASSERT_EQ(*static_cast<int*>(segment.data()), 0);
            *static_cast<int*>(segment.data()) = t + 1;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  work(1);  // gRPC opens its descriptors for that many threads
  const size_t before = OpenFds();
  work(kRounds);
  EXPECT_EQ(daemon.live_leases(/*awaited=*/0), 0u);
  EXPECT_LE(OpenFds(), before + kThreads);
}

// Objects that outlive main() end with the other static objects.
struct Statics {
  std::unique_ptr<Client> client;
  Segment segment;
};

// The daemon's folder, which must be removed here: exit() ends no daemon.
struct Folder {
  std::string path;
  ~Folder() { std::filesystem::remove_all(path); }
};

void ExitWithASegment(bool crash) {
  static Folder folder;  // made first, so destroyed last
  static Statics statics;
  // Never destroyed, so that it exists while the statics end.
  auto* const daemon = new FakeDaemon;
  folder.path = daemon->runtime_dir();
  statics.client = ConnectTo(*daemon);
  statics.segment = statics.client->Acquire({.bytes = kBytes}).value();
  if (crash) daemon->Crash();
  exit(42);
}

TEST(ClientDeathTest, EndsQuietlyWithTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ExitWithASegment(false), ::testing::ExitedWithCode(42), "^$");
  EXPECT_EXIT(ExitWithASegment(true), ::testing::ExitedWithCode(42), "^$");
}

}  // namespace
}  // namespace gpumem
