// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/trace.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"

namespace gpumem::bench {
namespace {

constexpr int kRandomAllocations = 100'000;
constexpr uint64_t kRandomLiveBytes = 16'000 * kMiB;

}  // namespace

uint64_t LivePeakBytes(const Trace& trace, size_t events) {
  std::vector<uint64_t> bytes(trace.ids);
  uint64_t live = 0, peak = 0;
  for (size_t i = 0; i < std::min(events, trace.events.size()); ++i) {
    const TraceEvent& event = trace.events[i];
    live = live - bytes[event.id] + event.bytes;
    bytes[event.id] = event.bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

const std::vector<std::string>& TraceNames() {
  static const auto* const names = new std::vector<std::string>{
      "training", "serving", "random-1MiB", "random-64MiB", "random-1GiB"};
  return *names;
}

absl::StatusOr<Trace> MakeTrace(const std::string& name) {
  if (name == "training") return MakeTrainingTrace();
  if (name == "serving") return MakeServingTrace();
  uint64_t seed = 1;
  for (const uint64_t mib : {1, 64, 1024}) {
    const std::string random =
        mib == 1024 ? std::string("random-1GiB") : absl::StrCat("random-", mib, "MiB");
    if (name == random) {
      return MakeRandomTrace(name, kRandomAllocations, mib * kMiB, kRandomLiveBytes, seed);
    }
    ++seed;
  }
  return absl::NotFoundError(absl::StrCat("There is no trace \"", name, "\"; there are ",
                                          absl::StrJoin(TraceNames(), ", "), "."));
}

absl::Status WriteTrace(const Trace& trace, const std::string& path) {
  std::ofstream file(path);
  file << "# gpumem_bench's trace " << trace.name << ": " << trace.events.size() << " events, "
       << trace.ids << " ids, " << trace.streams << " streams\n";
  for (const TraceEvent& event : trace.events) {
    if (event.bytes > 0) {
      file << "+ " << event.id << ' ' << event.bytes << ' ' << event.stream << '\n';
    } else {
      file << "- " << event.id << ' ' << event.stream << '\n';
    }
  }
  file.close();
  if (!file) return absl::UnknownError(absl::StrCat("Cannot write ", path, "."));
  return absl::OkStatus();
}

uint32_t TraceBuilder::Allocate(uint64_t bytes, uint32_t stream) {
  if (unused_.empty()) {
    unused_.push_back(trace_.ids++);
    live_.push_back(false);
  }
  const uint32_t id = unused_.back();
  unused_.pop_back();
  live_[id] = true;
  trace_.streams = std::max(trace_.streams, stream + 1);
  trace_.events.push_back({.bytes = bytes, .id = id, .stream = stream});
  return id;
}

void TraceBuilder::Free(uint32_t id, uint32_t stream) {
  live_[id] = false;
  unused_.push_back(id);
  trace_.streams = std::max(trace_.streams, stream + 1);
  trace_.events.push_back({.bytes = 0, .id = id, .stream = stream});
}

Trace TraceBuilder::Build() && {
  for (uint32_t id = 0; id < trace_.ids; ++id) {
    if (live_[id]) Free(id);
  }
  return std::move(trace_);
}

}  // namespace gpumem::bench
