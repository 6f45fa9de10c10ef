// SPDX-License-Identifier: Apache-2.0
// The samples of a call and of its floor, measured in turn, and their statistics.
#pragma once

#include <cstddef>

#include "tests/bench/samples.h"

namespace gpumem::bench {

// The compared figures are times in microseconds, or rates.
class PairSamples {
 public:
  // One of each, from the same moment.
  void Add(double floor, double call);

  struct Summary {
    size_t pairs = 0;
    double floor_median = 0, floor_p99 = 0;
    double call_median = 0, call_p99 = 0;
    // Of the medians, call to floor. Then the quartiles of the pairs' ratios.
    double ratio = 0, ratio_q1 = 0, ratio_q3 = 0;
  };
  // All zero without pairs.
  Summary Summarize() const;

 private:
  Samples floor_, call_, ratio_;
};

}  // namespace gpumem::bench
