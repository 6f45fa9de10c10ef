// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/broker/timed_mutex.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/trace/recording.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace timed_mutex_test {

// Advances only when a test says so.
struct ManualClock {
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<ManualClock, duration>;
  static time_point now() { return time_point(duration(nanoseconds.load())); }
  static void Advance(std::chrono::milliseconds by) {
    nanoseconds += std::chrono::duration_cast<duration>(by).count();
  }
  static std::atomic<int64_t> nanoseconds;
};
std::atomic<int64_t> ManualClock::nanoseconds = 0;

using Mutex = BasicTimedMutex<ManualClock>;
using Lock = BasicTimedLock<ManualClock>;

TEST(TimedMutex, CountsEachHold) {
  Mutex mutex;
  for (int ms : {1, 7, 3}) {
    Lock lock(&mutex);
    ManualClock::Advance(std::chrono::milliseconds(ms));
  }
  ManualClock::Advance(std::chrono::milliseconds(100));  // not held
  const HoldTimes times = mutex.Read();
  EXPECT_EQ(times.holds.count(), 3u);
  EXPECT_EQ(times.holds.sum, absl::Milliseconds(11));
  EXPECT_EQ(times.longest, absl::Milliseconds(7));
}

TEST(TimedMutex, WaitingDoesNotCountAsHolding) {
  Mutex mutex;
  bool waits = false, go_on = false;
  std::thread waiter([&] {
    Lock lock(&mutex);
    waits = true;
    ManualClock::Advance(std::chrono::milliseconds(2));
    mutex.Await(absl::Condition(&go_on));
    ManualClock::Advance(std::chrono::milliseconds(5));
  });
  for (bool done = false; !done;) {
    Lock lock(&mutex);
    done = waits;
  }
  ManualClock::Advance(std::chrono::seconds(60));
  {
    Lock lock(&mutex);
    go_on = true;
  }
  waiter.join();
  EXPECT_EQ(mutex.Read().longest, absl::Milliseconds(5));
}

TEST(TimedMutex, HoldContinuesIfThereIsNothingToWaitFor) {
  Mutex mutex;
  bool there = true, never = false;
  {
    Lock lock(&mutex);
    ManualClock::Advance(std::chrono::milliseconds(2));
    mutex.Await(absl::Condition(&there));
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&there), absl::ZeroDuration()));
    ManualClock::Advance(std::chrono::milliseconds(2));
    EXPECT_FALSE(mutex.AwaitWithTimeout(absl::Condition(&never), absl::ZeroDuration()));
    EXPECT_FALSE(mutex.AwaitWithDeadline(absl::Condition(&never), absl::InfinitePast()));
  }
  EXPECT_EQ(mutex.Read().longest, absl::Milliseconds(4));
}

// A thread that tries to lock it while it is held may come too late: then it is tried again.
TEST(TimedMutex, ATraceShowsWaitsForItAlone) {
  const auto recording = gpumem::trace::Recording::Start();
  ASSERT_TRUE(recording.ok()) << recording.status();
  Mutex mutex;
  std::vector<gpumem::trace::Event> events;
  { Lock lock(&mutex); }
  (*recording)->Take(&events);
  EXPECT_TRUE(events.empty()) << "it was free";
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (events.empty() && absl::Now() < end) {
    std::thread waits;
    {
      Lock lock(&mutex);
      waits = std::thread([&] { Lock theirs(&mutex); });
      absl::SleepFor(absl::Milliseconds(1));
    }
    waits.join();
    (*recording)->Take(&events);
  }
  ASSERT_EQ(events.size(), 1u);
  EXPECT_STREQ(events[0].name, "lock wait");
}

}  // namespace timed_mutex_test
}  // namespace gpumemd
