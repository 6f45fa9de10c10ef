// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/latency.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace gpumemd {
namespace {

TEST(LatencyHistogramTest, ABoundBelongsToTheBucketBelowIt) {
  for (size_t i = 0; i < LatencyCounts::kBounds.size(); ++i) {
    LatencyHistogram histogram;
    histogram.Observe(absl::Nanoseconds(LatencyCounts::kBounds[i]));
    histogram.Observe(absl::Nanoseconds(LatencyCounts::kBounds[i] + 1));
    const LatencyCounts counts = histogram.Read();
    EXPECT_EQ(counts.buckets[i], 1) << i;
    EXPECT_EQ(counts.buckets[i + 1], 1) << i;
    EXPECT_EQ(counts.count(), 2);
    EXPECT_EQ(counts.sum, absl::Nanoseconds(2 * LatencyCounts::kBounds[i] + 1));
  }
}

TEST(LatencyHistogramTest, BoundsGrow) {
  for (size_t i = 1; i < LatencyCounts::kBounds.size(); ++i) {
    EXPECT_GT(LatencyCounts::kBounds[i], LatencyCounts::kBounds[i - 1]);
  }
}

TEST(LatencyHistogramTest, AClockThatWasSetBackCountsAsNoTime) {
  LatencyHistogram histogram;
  histogram.Observe(absl::Seconds(-5));
  histogram.Observe(absl::InfiniteDuration());
  const LatencyCounts counts = histogram.Read();
  EXPECT_EQ(counts.buckets.front(), 1);
  EXPECT_EQ(counts.buckets.back(), 1);
}

TEST(LatencyHistogramTest, ManyThreadsLoseNothing) {
  LatencyHistogram histogram;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&histogram] {
      for (int n = 0; n < 10000; ++n) histogram.Observe(absl::Microseconds(n % 100));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const LatencyCounts counts = histogram.Read();
  EXPECT_EQ(counts.count(), 40000);
  EXPECT_EQ(counts.sum, 400 * absl::Microseconds(4950));
}

}  // namespace
}  // namespace gpumemd
