// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/latency/pair_samples.h"

namespace gpumem::bench {

void PairSamples::Add(double floor, double call) {
  floor_.AddValue(floor);
  call_.AddValue(call);
  ratio_.AddValue(floor > 0 ? call / floor : 0);
}

PairSamples::Summary PairSamples::Summarize() const {
  Summary summary = {.pairs = call_.size(),
                     .floor_median = floor_.Median(),
                     .floor_p99 = floor_.Quantile(0.99),
                     .call_median = call_.Median(),
                     .call_p99 = call_.Quantile(0.99)};
  if (summary.floor_median > 0) summary.ratio = summary.call_median / summary.floor_median;
  summary.ratio_q1 = ratio_.Quantile(0.25);
  summary.ratio_q3 = ratio_.Quantile(0.75);
  return summary;
}

}  // namespace gpumem::bench
