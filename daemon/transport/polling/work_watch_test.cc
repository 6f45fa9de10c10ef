// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/polling/work_watch.h"

#include <atomic>
#include <thread>

#include "absl/time/time.h"
#include "common/node_clock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

constexpr absl::Duration kMost = absl::Milliseconds(20);

TEST(WorkWatchTest, TellsOnceOfALateWork) {
  std::atomic<int> told = 0;
  WorkWatch watch(kMost, [&] { ++told; });
  for (int i = 1; i <= 3; ++i) {
    const absl::Time begin = gpumem::NodeTime();
    watch.Begins();
    while (told < i) std::this_thread::yield();
    EXPECT_GE(gpumem::NodeTime() - begin, kMost);
    watch.Ends();
  }
  EXPECT_EQ(told, 3);
}

// The alarm that the first work has set goes off while the second one runs.
TEST(WorkWatchTest, GivesEachWorkItsWholeTime) {
  std::atomic<int> told = 0;
  WorkWatch watch(kMost, [&] { ++told; });
  watch.Begins();
  watch.Ends();
  const absl::Time half = gpumem::NodeTime() + kMost / 2;
  while (gpumem::NodeTime() < half) std::this_thread::yield();
  const int before = told;  // 1 if this thread lost its processor during the first work
  const absl::Time begin = gpumem::NodeTime();
  watch.Begins();
  while (told == before) std::this_thread::yield();
  EXPECT_GE(gpumem::NodeTime() - begin, kMost);
}

// Nothing is missed however the alarm and the works meet.
TEST(WorkWatchTest, TellsOfALateWorkAfterManyShortOnes) {
  std::atomic<int> told = 0;
  WorkWatch watch(absl::Microseconds(50), [&] { ++told; });
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < round; ++i) {
      watch.Begins();
      watch.Ends();
    }
    const int before = told;
    watch.Begins();
    // One of the short ones may be told of, too, if this thread lost its processor meanwhile.
    while (told == before) std::this_thread::yield();
    watch.Ends();
  }
}

}  // namespace
}  // namespace gpumemd
