// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/trend.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>

namespace gpumem::soak {
namespace {

constexpr double kHour = 3600;
constexpr double kDeviations = 3.29;  // of a normal distribution: 99.9%, two-sided
constexpr double kCorrelated = 1.96;  // the same for 95%: a correlation that is no accident

std::vector<Point> Blocks(absl::Span<const Point> points, int blocks) {
  std::vector<Point> result;
  if (points.empty()) return result;
  const double begin = points.front().seconds;
  const double length = (points.back().seconds - begin) / blocks;
  std::vector<double> times, values;
  int block = 0;
  const auto end_block = [&] {
    if (!values.empty()) result.push_back({MedianOf(times), MedianOf(values)});
    times.clear();
    values.clear();
  };
  for (const Point& point : points) {
    const int its =
        length > 0 ? std::min(blocks - 1, static_cast<int>((point.seconds - begin) / length)) : 0;
    if (its != block) end_block();
    block = its;
    times.push_back(point.seconds);
    values.push_back(point.value);
  }
  end_block();
  return result;
}

// Ranks from 1; equal values have the mean of theirs.
std::vector<double> RanksOf(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t i = 0; i < order.size();) {
    size_t end = i;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (size_t k = i; k < end; ++k) ranks[order[k]] = (static_cast<double>(i + end) + 1) / 2;
    i = end;
  }
  return ranks;
}

// Returns by how much the variance of Kendall's S is larger than for independent values.
double Inflation(const std::vector<double>& residuals) {
  const size_t n = residuals.size();
  const std::vector<double> ranks = RanksOf(residuals);
  const double mean = (static_cast<double>(n) + 1) / 2;
  double variance = 0;
  for (const double rank : ranks) variance += (rank - mean) * (rank - mean);
  if (variance == 0) return 1;
  double sum = 0;
  const double size = static_cast<double>(n);
  for (size_t lag = 1; lag < n / 3; ++lag) {
    double covariance = 0;
    for (size_t i = 0; i + lag < n; ++i) covariance += (ranks[i] - mean) * (ranks[i + lag] - mean);
    const double correlation = covariance / variance;
    // Negative ones would make the interval narrower.
    if (correlation < kCorrelated / std::sqrt(size)) continue;
    const double left = size - static_cast<double>(lag);
    sum += left * (left - 1) * (left - 2) * correlation;
  }
  return 1 + 2 * sum / (size * (size - 1) * (size - 2));
}

// The variance of Kendall's S of independent values.
double VarianceOfS(const std::vector<Point>& points) {
  const double n = static_cast<double>(points.size());
  const auto part = [](double count) { return count * (count - 1) * (2 * count + 5); };
  double sum = part(n);
  std::map<double, double> counts;
  for (const Point& point : points) ++counts[point.value];
  for (const auto& [value, count] : counts) sum -= part(count);
  return sum / 18;
}

}  // namespace

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

Trend TrendOf(absl::Span<const Point> points, int blocks) {
  const std::vector<Point> medians = Blocks(points, blocks);
  Trend trend = {.blocks = static_cast<int>(medians.size())};
  std::vector<double> slopes;
  for (size_t i = 0; i < medians.size(); ++i) {
    for (size_t k = i + 1; k < medians.size(); ++k) {
      slopes.push_back((medians[k].value - medians[i].value) /
                       (medians[k].seconds - medians[i].seconds) * kHour);
    }
  }
  if (slopes.empty()) return trend;
  std::sort(slopes.begin(), slopes.end());
  trend.slope = MedianOf(slopes);
  std::vector<double> residuals;
  for (const Point& point : medians) {
    residuals.push_back(point.value - trend.slope * point.seconds / kHour);
  }
  const double deviation = kDeviations * std::sqrt(VarianceOfS(medians) * Inflation(residuals));
  const double count = static_cast<double>(slopes.size());
  const auto at = [&](double index) {
    return slopes[static_cast<size_t>(std::clamp(index, 0.0, count - 1))];
  };
  trend.low = at(std::floor((count - deviation) / 2));
  trend.high = at(std::ceil((count + deviation) / 2));
  return trend;
}

Finding Judge(const Trend& trend, double floor) {
  if (trend.blocks < kLeastBlocks) return Finding::kNotShown;
  if (trend.low > 0 && trend.slope > floor) return Finding::kGrows;
  return trend.high <= floor ? Finding::kFlat : Finding::kNotShown;
}

absl::string_view NameOf(Finding finding) {
  switch (finding) {
    case Finding::kFlat:
      return "flat";
    case Finding::kNotShown:
      return "not shown";
    case Finding::kGrows:
      return "grows";
  }
  return "";
}

}  // namespace gpumem::soak
