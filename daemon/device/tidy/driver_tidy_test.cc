// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/tidy/driver_tidy.h"

#include <atomic>
#include <memory>
#include <random>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr absl::Duration kPause = TidySchedule::kPause;
const absl::Time kStart = absl::UnixEpoch();

TEST(TidyScheduleTest, DoesNothingBeforeEnoughIsFreed) {
  TidySchedule schedule;
  EXPECT_EQ(schedule.next(), absl::InfiniteFuture());
  schedule.Freed(kStart, TidySchedule::kLeastBytes - 1);
  EXPECT_EQ(schedule.next(), absl::InfiniteFuture());
  schedule.Freed(kStart + absl::Hours(1), 1);
  EXPECT_EQ(schedule.next(), kStart + absl::Hours(1) + kPause);
}

TEST(TidyScheduleTest, AllocatesUntilAllMustBeCleared) {
  TidySchedule schedule;
  schedule.Freed(kStart, 64 * kGiB);  // cleared after a second at the latest
  int times = 0;
  absl::Time last = kStart;
  while (schedule.next() != absl::InfiniteFuture()) {
    EXPECT_EQ(schedule.next(), last + kPause);
    last = schedule.next();
    schedule.Allocated(last);
    ++times;
  }
  EXPECT_EQ(times, absl::Seconds(1) / kPause);
  EXPECT_EQ(last, kStart + absl::Seconds(1));
}

TEST(TidyScheduleTest, WaitsForTheEndOfASeriesOfFrees) {
  TidySchedule schedule;
  absl::Time now = kStart;
  for (int i = 0; i < 100; ++i) {
    schedule.Freed(now, kGiB);
    EXPECT_EQ(schedule.next(), now + kPause);
    now += kPause / 2;
  }
}

// However frees and allocations alternate, the last allocation comes after all is cleared, and no
// two come within the pause.
TEST(TidyScheduleTest, TakesAllIntoTheBooksInTheEnd) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    TidySchedule schedule;
    absl::Time now = kStart, cleared = kStart, last = absl::InfinitePast();
    uint64_t since = 0;
    for (int step = 0; step < 50; ++step) {
      if (random() % 2 == 0) {
        const uint64_t bytes = random() % kGiB;
        schedule.Freed(now, bytes);
        since += bytes;
        cleared = std::max(cleared, now) +
                  absl::Seconds(1) * (static_cast<double>(bytes) /
                                      static_cast<double>(TidySchedule::kClearedPerSecond));
      } else if (schedule.next() != absl::InfiniteFuture()) {
        now = std::max(now, schedule.next());
        EXPECT_GE(now - last, kPause);
        last = now;
        schedule.Allocated(now);
        if (schedule.next() == absl::InfiniteFuture()) {
          EXPECT_GE(now, cleared);
          since = 0;
        }
      }
      now += absl::Microseconds(random() % 5000);
      EXPECT_EQ(schedule.next() == absl::InfiniteFuture(), since < TidySchedule::kLeastBytes);
    }
  }
}

TEST(DriverTidyTest, AllocatesAfterALargeFree) {
  absl::BlockingCounter twice(2);
  std::atomic<int> times = 0;
  DriverTidy tidy([&] {
    if (++times <= 2) twice.DecrementCount();
  });
  tidy.Freed(1'000'000 * kGiB);  // takes hours to clear
  twice.Wait();
}

TEST(DriverTidyTest, LeavesSmallFreesAlone) {
  std::atomic<int> times = 0;
  {
    DriverTidy tidy([&] { ++times; });
    tidy.Freed(TidySchedule::kLeastBytes - 1);
  }
  EXPECT_EQ(times, 0);
}

TEST(DriverTidyTest, EndsWhileItAllocates) {
  absl::Notification begun, ends;
  auto tidy = std::make_unique<DriverTidy>([&] {
    if (begun.HasBeenNotified()) return;
    begun.Notify();
    ends.WaitForNotification();
  });
  tidy->Freed(1024 * kGiB);
  begun.WaitForNotification();
  ends.Notify();
  tidy.reset();
}

}  // namespace
}  // namespace gpumemd
