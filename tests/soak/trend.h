// SPDX-License-Identifier: Apache-2.0
// The slope of a noisy series, with its confidence: does a figure grow with time?
//
// Samples of a process's memory depend on each other, have outliers, and rise in steps. So the
// time is divided into equal blocks, each block counts by its median, and the slope is that of
// Theil and Sen: the median of the slopes between any two blocks. Its interval is Sen's, by
// Kendall's variance, made wider where neighbouring blocks are alike (Hamed and Rao, 1998).
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gpumem::soak {

struct Point {
  double seconds = 0;
  double value = 0;
};

// In units of the series for each hour.
struct Trend {
  double slope = 0;
  double low = 0, high = 0;  // with a confidence of 99.9%
  int blocks = 0;            // that have samples; below kLeastBlocks there is no interval
};

inline constexpr int kBlocks = 40;
inline constexpr int kLeastBlocks = 12;

// Of an even number: the mean of both in the middle. `values`: not empty.
double MedianOf(std::vector<double> values);

// `points`: by time, in ascending order.
Trend TrendOf(absl::Span<const Point> points, int blocks = kBlocks);

enum class Finding {
  kFlat,      // it grows by the floor at most, with that confidence
  kNotShown,  // it may grow by more than the floor, or not: too short or too noisy
  kGrows,     // it grows, with that confidence, and by more than the floor
};
// `floor`: the growth in an hour up to which a series counts as flat.
Finding Judge(const Trend& trend, double floor);
absl::string_view NameOf(Finding finding);

}  // namespace gpumem::soak
