// SPDX-License-Identifier: Apache-2.0
// How long an action took, counted by buckets: a Prometheus histogram.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace gpumemd {

// The counts of a LatencyHistogram.
struct LatencyCounts {
  // Upper bounds of the buckets, in nanoseconds; the last bucket has none. They range from reusing
  // a segment (tens of microseconds) to a request that has waited for a minute.
  static constexpr std::array<int64_t, 18> kBounds = {
      25'000,      50'000,        100'000,       250'000,        500'000,        1'000'000,
      2'500'000,   5'000'000,     10'000'000,    25'000'000,     50'000'000,     100'000'000,
      250'000'000, 1'000'000'000, 2'500'000'000, 10'000'000'000, 30'000'000'000, 60'000'000'000};

  std::array<uint64_t, kBounds.size() + 1> buckets{};  // each without those below it
  absl::Duration sum;
  uint64_t count() const {
    uint64_t all = 0;
    for (uint64_t bucket : buckets) all += bucket;
    return all;
  }
};

// Thread-safe, without a lock: two additions for each observation.
class LatencyHistogram {
 public:
  // Counts negative times as 0: the clock was set back.
  void Observe(absl::Duration took) {
    const int64_t ns = took > absl::ZeroDuration() ? absl::ToInt64Nanoseconds(took) : 0;
    size_t bucket = 0;
    while (bucket < LatencyCounts::kBounds.size() && ns > LatencyCounts::kBounds[bucket]) ++bucket;
    buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(static_cast<uint64_t>(ns), std::memory_order_relaxed);
  }

  // An observation made meanwhile may be in only one of sum and buckets.
  LatencyCounts Read() const {
    LatencyCounts counts;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      counts.buckets[i] = buckets_[i].load(std::memory_order_relaxed);
    }
    counts.sum = absl::Nanoseconds(static_cast<int64_t>(sum_ns_.load(std::memory_order_relaxed)));
    return counts;
  }

 private:
  std::array<std::atomic<uint64_t>, LatencyCounts::kBounds.size() + 1> buckets_{};
  std::atomic<uint64_t> sum_ns_ = 0;
};

}  // namespace gpumemd
