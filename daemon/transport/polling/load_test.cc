// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/polling/load.h"

#include <algorithm>
#include <random>

#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using Advice = PollingLoad::Advice;

TEST(PollingLoadTest, AsksForHelpOnlyWhenBusy) {
  PollingLoad load;
  absl::Time now = absl::UnixEpoch();
  absl::Duration used;
  load.Start(now, used);
  EXPECT_FALSE(load.Due(now + absl::Milliseconds(1)));
  const auto look = [&](double share) {
    now += absl::Milliseconds(2);
    used += absl::Milliseconds(2) * share;
    EXPECT_TRUE(load.Due(now));
    return load.Look(now, used);
  };
  EXPECT_EQ(look(0.9), Advice::kCallAnother);
  EXPECT_EQ(look(0.5), Advice::kStay);
  EXPECT_EQ(look(0.1), Advice::kLeave);
}

// Threads that share any amount of work evenly: their number settles, and none is overloaded.
TEST(PollingLoadTest, SettlesForEachLoad) {
  std::mt19937 random(3);
  constexpr int kMost = 16;
  for (int round = 0; round < 200; ++round) {
    const double work = random() % 1000 / 1000.0 * (kMost - 1);
    int threads = static_cast<int>(random() % kMost) + 1;
    int changes = 0, changed_at = 0;
    absl::Time now = absl::UnixEpoch();
    PollingLoad load;
    load.Start(now, absl::ZeroDuration());
    absl::Duration used;
    for (int step = 0; step < 100; ++step) {
      const double share = std::min(1.0, work / threads);
      now += absl::Milliseconds(2);
      used += absl::Milliseconds(2) * share;
      const Advice advice = load.Look(now, used);
      const int next = advice == Advice::kCallAnother ? std::min(threads + 1, kMost)
                       : advice == Advice::kLeave     ? std::max(threads - 1, 1)
                                                      : threads;
      if (next != threads) {
        ++changes;
        changed_at = step;
      }
      threads = next;
    }
    EXPECT_LE(changed_at, 20) << work;
    EXPECT_LE(changes, kMost) << work;
    if (threads < kMost) {
      EXPECT_LE(work / threads, 0.81) << work;
    }
  }
}

}  // namespace
}  // namespace gpumemd
