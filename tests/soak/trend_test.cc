// SPDX-License-Identifier: Apache-2.0
// Series like those of a daemon, with a leak and without: is the leak found, and nothing else?
#include "tests/soak/trend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace gpumem::soak {
namespace {

constexpr double kKiB = 1024;
constexpr double kMiB = 1024 * kKiB;
constexpr int kHour = 3600;

// A sample a second.
std::vector<Point> Samples(int seconds, const std::function<double(int)>& value) {
  std::vector<Point> points;
  for (int i = 0; i < seconds; ++i) points.push_back({static_cast<double>(i), value(i)});
  return points;
}

// Memory of a process: whole pages, which depend on the load of the last minute, and a peak of some
// MiB now and then.
std::function<double(int)> Memory(unsigned seed, double leak_an_hour) {
  return [random = std::mt19937(seed), load = 0.0, leak_an_hour](int second) mutable {
    std::normal_distribution<double> normal;
    load = load * (1 - 1 / 60.0) + normal(random) * 20 * kKiB;
    double bytes = 30 * kMiB + load + leak_an_hour * second / kHour;
    if (random() % 50 == 0) bytes += 8 * kMiB;
    return std::floor(bytes / 4096) * 4096;
  };
}

Finding Find(const std::vector<Point>& points, double floor) {
  return Judge(TrendOf(points), floor);
}

TEST(Trend, IsExactWithoutNoise) {
  const Trend trend = TrendOf(Samples(kHour, [](int second) { return 7.0 + 2.0 * second; }));
  EXPECT_NEAR(trend.slope, 7200, 0.1);
  EXPECT_NEAR(trend.low, 7200, 0.1);
  EXPECT_NEAR(trend.high, 7200, 0.1);
  EXPECT_EQ(trend.blocks, kBlocks);
}

TEST(Trend, IsZeroWhereNothingChanges) {
  const Trend trend = TrendOf(Samples(kHour, [](int) { return 11.0; }));
  EXPECT_EQ(trend.slope, 0);
  EXPECT_EQ(trend.low, 0);
  EXPECT_EQ(trend.high, 0);
  EXPECT_EQ(Judge(trend, 0), Finding::kFlat);
}

TEST(Trend, SaysNothingOfAFewSamples) {
  EXPECT_EQ(Find({}, 0), Finding::kNotShown);
  EXPECT_EQ(Find({{0, 1}}, 0), Finding::kNotShown);
  EXPECT_EQ(Find({{5, 1}, {5, 2}}, 0), Finding::kNotShown);
  EXPECT_EQ(Find(Samples(kLeastBlocks - 1, [](int second) { return second; }), 0),
            Finding::kNotShown);
}

TEST(Trend, MemoryWithoutALeakDoesNotGrow) {
  int flat = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Finding finding = Find(Samples(6 * kHour, Memory(seed, 0)), 64 * kKiB);
    EXPECT_NE(finding, Finding::kGrows) << seed;
    flat += finding == Finding::kFlat;
  }
  EXPECT_GE(flat, 190);
}

TEST(Trend, ALeakOfMemoryIsFound) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    EXPECT_EQ(Find(Samples(6 * kHour, Memory(seed, 128 * kKiB)), 64 * kKiB), Finding::kGrows)
        << seed;
    EXPECT_EQ(Find(Samples(kHour, Memory(seed, 1 * kMiB)), 64 * kKiB), Finding::kGrows) << seed;
  }
}

TEST(Trend, ALeakBelowTheFloorIsFlat) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    EXPECT_NE(Find(Samples(6 * kHour, Memory(seed, 16 * kKiB)), 64 * kKiB), Finding::kGrows)
        << seed;
  }
}

// Descriptors come and go with sessions; one more stays every ten minutes.
TEST(Trend, ALeakOfDescriptorsIsFound) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const auto series = [&](int each) {
      return Samples(kHour, [&, each](int second) {
        return 40.0 + static_cast<double>(random() % 9) + (each > 0 ? second / each : 0);
      });
    };
    EXPECT_EQ(Find(series(600), 2), Finding::kGrows) << seed;
    EXPECT_EQ(Find(series(0), 2), Finding::kFlat) << seed;
  }
}

TEST(Trend, ALeakOfThreadsIsFound) {
  EXPECT_EQ(Find(Samples(kHour, [](int second) { return std::floor(20.0 + second / 300.0); }), 2),
            Finding::kGrows);
  // One more, once, is no growth.
  EXPECT_NE(Find(Samples(kHour, [](int second) { return second < 2000 ? 20.0 : 21.0; }), 1),
            Finding::kGrows);
}

// A file that grows and is written anew has the same size in the end.
TEST(Trend, ASawtoothDoesNotGrow) {
  EXPECT_NE(Find(Samples(kHour, [](int second) { return 4096.0 * (second % 70); }), 64 * kKiB),
            Finding::kGrows);
}

TEST(Trend, ALeakThatNoiseHidesIsNotCalledFlat) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  const auto series = Samples(300, [&](int second) {
    return 30 * kMiB + normal(random) * 300 * kKiB + 64 * kKiB * second / kHour;
  });
  EXPECT_EQ(Find(series, 64 * kKiB), Finding::kNotShown);
}

}  // namespace
}  // namespace gpumem::soak
