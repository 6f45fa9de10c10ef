// SPDX-License-Identifier: Apache-2.0
// Google Benchmark's results, kept for the tables at the end.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "benchmark/benchmark.h"

namespace gpumem::bench {

struct Result {
  double ns = 0;  // of an iteration, real time
  std::map<std::string, double> counters;

  // Returns 0 if there is none.
  double Counter(const std::string& name) const {
    const auto found = counters.find(name);
    return found == counters.end() ? 0 : found->second;
  }
};

// Returns the last run of a benchmark by the name that it was registered with; an empty one if
// there was none. A run with several threads is another benchmark.
const Result& ResultOf(const std::string& name, int threads = 1);

// Prints as Google Benchmark does, by its flags, and keeps the results.
std::unique_ptr<benchmark::BenchmarkReporter> MakeReporter();

}  // namespace gpumem::bench
