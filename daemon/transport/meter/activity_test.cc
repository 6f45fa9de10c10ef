// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/meter/activity.h"

#include <atomic>
#include <ctime>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/node_clock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

// Of this thread.
absl::Duration CpuTime() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return absl::DurationFromTimespec(used);
}

TEST(ActivityWatchTest, WakesOnceAfterItIsArmed) {
  int woken = 0;
  ActivityWatch watch([&] { ++woken; });
  const uint64_t before = ActivityWatch::count();
  ActivityWatch::Note();
  EXPECT_EQ(woken, 0);
  EXPECT_EQ(ActivityWatch::count(), before + 1);
  watch.Arm();
  ActivityWatch::Note();
  ActivityWatch::Note();
  EXPECT_EQ(woken, 1);
}

TEST(ActivityWatchTest, WakesAllThatAreArmed) {
  int first = 0, second = 0;
  ActivityWatch a([&] { ++first; });
  {
    ActivityWatch b([&] { ++second; });
    a.Arm();
    b.Arm();
    ActivityWatch::Note();
    EXPECT_EQ(first, 1);
    EXPECT_EQ(second, 1);
    b.Arm();
  }
  ActivityWatch::Note();
  EXPECT_EQ(second, 1);
}

// A thread that arms, looks and sleeps misses no activity.
TEST(ActivityWatchTest, LosesNoWake) {
  absl::Mutex mutex;
  bool woken = false;
  ActivityWatch watch([&] {
    absl::MutexLock lock(&mutex);
    woken = true;
  });
  std::atomic<uint64_t> seen = ActivityWatch::count();
  constexpr int kRounds = 2000;
  std::thread sleeper([&] {
    for (int i = 0; i < kRounds; ++i) {
      watch.Arm();
      absl::MutexLock lock(&mutex);
      if (ActivityWatch::count() == seen) {
        ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&woken), absl::Seconds(60)));
      }
      woken = false;
      ++seen;
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    const uint64_t before = ActivityWatch::count();
    while (seen < before) std::this_thread::yield();
    ActivityWatch::Note();
  }
  sleeper.join();
}

TEST(NoteReaderTest, TellsWhenAnotherSocketIsRead) {
  NoteReader(5);
  const absl::Time before = gpumem::NodeTime();
  NoteReader(5);
  EXPECT_LE(GetReaderFacts().other_at, before);
  NoteReader(6);
  EXPECT_GE(GetReaderFacts().other_at, before);
  EXPECT_LE(GetReaderFacts().other_at, gpumem::NodeTime());
}

TEST(NoteReaderTest, CountsOtherSocketsThatHaveWaited) {
  const auto held_up_after = [](absl::Duration pause, int socket) {
    NoteReader(1);
    const uint64_t before = GetReaderFacts().held_up;
    NoteHoldUp();
    const absl::Duration until = CpuTime() + pause;  // this thread may be preempted
    while (CpuTime() < until) {
    }
    NoteReader(socket);
    return GetReaderFacts().held_up != before;
  };
  EXPECT_FALSE(held_up_after(absl::Milliseconds(1), 2));
  EXPECT_FALSE(held_up_after(absl::ZeroDuration(), 1));
  bool ever = false;
  for (int i = 0; i < 1000 && !ever; ++i) ever = held_up_after(absl::ZeroDuration(), 2);
  EXPECT_TRUE(ever);
}

}  // namespace
}  // namespace gpumemd
