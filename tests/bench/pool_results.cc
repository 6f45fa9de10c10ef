// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/pool_results.h"

#include <utility>
#include <vector>

namespace gpumem::bench {
namespace {

std::map<std::pair<std::string, int>, Result>& AllResults() {
  static auto* const all = new std::map<std::pair<std::string, int>, Result>;
  return *all;
}

class Reporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override { return shown_->ReportContext(context); }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.error_occurred) continue;
      Result& result = AllResults()[{run.run_name.function_name, static_cast<int>(run.threads)}];
      result.ns = run.real_accumulated_time * 1e9 / static_cast<double>(run.iterations);
      for (const auto& [name, counter] : run.counters) result.counters[name] = counter.value;
    }
    shown_->ReportRuns(runs);
  }
  void Finalize() override { shown_->Finalize(); }

 private:
  const std::unique_ptr<BenchmarkReporter> shown_{benchmark::CreateDefaultDisplayReporter()};
};

}  // namespace

const Result& ResultOf(const std::string& name, int threads) {
  static const auto* const none = new Result;
  const auto found = AllResults().find({name, threads});
  return found == AllResults().end() ? *none : found->second;
}

std::unique_ptr<benchmark::BenchmarkReporter> MakeReporter() {
  return std::make_unique<Reporter>();
}

}  // namespace gpumem::bench
