// SPDX-License-Identifier: Apache-2.0
// Times of one kind, and their statistics. Microseconds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gpumem::bench {

class Samples {
 public:
  void Add(absl::Duration time) { AddValue(absl::ToDoubleMicroseconds(time)); }
  void AddValue(double value) { us_.push_back(value); }  // also of another unit
  bool empty() const { return us_.empty(); }
  size_t size() const { return us_.size(); }
  const std::vector<double>& values() const { return us_; }

  // The smallest time that a share `q` of all times does not exceed.
  double Quantile(double q) const {
    if (us_.empty()) return 0;
    std::vector<double> sorted = us_;
    std::sort(sorted.begin(), sorted.end());
    const auto rank = static_cast<size_t>(q * static_cast<double>(sorted.size()));
    return sorted[std::min(rank, sorted.size() - 1)];
  }
  double Median() const { return Quantile(0.5); }

 private:
  std::vector<double> us_;
};

// By name, for the whole run, so that a row can be set against its floor.
std::map<std::string, Samples>& AllSamples();

template <typename Work>
absl::Duration Time(Work&& work) {
  const absl::Time begin = absl::Now();
  work();
  return absl::Now() - begin;
}

}  // namespace gpumem::bench
