// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/trace_view.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/counted.h"

namespace gpumem::cli {
namespace {

using trace::Slice;
using Number = std::pair<uint64_t, uint64_t>;  // of a call: its process, and its number there

// One call, with what both sides recorded of it.
struct Call {
  const Slice* client = nullptr;
  const Slice* daemon = nullptr;
  std::vector<const Slice*> steps;

  const Slice& whole() const { return client != nullptr ? *client : *daemon; }
};

// Samples of one step.
struct StepSamples {
  size_t depth = 0;
  std::vector<double> starts, lengths;
};

struct CallSamples {
  std::vector<double> lengths;
  std::map<std::pair<bool, std::string>, StepSamples> steps;  // by side and name
};

double Microseconds(uint64_t begin_ns, uint64_t end_ns) {
  return (static_cast<double>(end_ns) - static_cast<double>(begin_ns)) / 1000;
}

// Requires samples.
double Quantile(std::vector<double>& samples, double share) {
  const auto above = static_cast<size_t>(share * static_cast<double>(samples.size()));
  const auto place = static_cast<std::ptrdiff_t>(std::min(above, samples.size() - 1));
  std::nth_element(samples.begin(), samples.begin() + place, samples.end());
  return samples[static_cast<size_t>(place)];
}

std::vector<Call> CallsOf(const std::vector<Slice>& slices) {
  std::vector<Call> calls;
  absl::flat_hash_map<Number, size_t> by_number;
  absl::flat_hash_map<Number, size_t> by_request;  // clients' calls, by session and request
  for (const Slice& slice : slices) {
    if (!slice.call || slice.daemon) continue;
    by_number[{slice.process, slice.number}] = calls.size();
    if (slice.request != 0) by_request[{slice.session, slice.request}] = calls.size();
    calls.push_back({.client = &slice});
  }
  for (const Slice& slice : slices) {
    if (!slice.call || !slice.daemon) continue;
    const auto client = by_request.find({slice.session, slice.request});
    size_t place = calls.size();
    if (slice.request != 0 && client != by_request.end()) {
      place = client->second;
    } else {
      calls.emplace_back();
    }
    // A call that is repeated counts once.
    if (calls[place].daemon == nullptr) calls[place].daemon = &slice;
    by_number[{slice.process, slice.number}] = place;
  }
  for (const Slice& slice : slices) {
    if (slice.call || slice.number == 0) continue;
    const auto call = by_number.find({slice.process, slice.number});
    if (call != by_number.end()) calls[call->second].steps.push_back(&slice);
  }
  return calls;
}

void Add(Call& call, CallSamples& samples) {
  const Slice& whole = call.whole();
  samples.lengths.push_back(Microseconds(whole.begin_ns, whole.end_ns));
  std::sort(call.steps.begin(), call.steps.end(), [](const Slice* a, const Slice* b) {
    return std::tuple(a->track, a->begin_ns, b->end_ns) <
           std::tuple(b->track, b->begin_ns, a->end_ns);
  });
  struct OfCall {
    uint64_t begin_ns;
    double length = 0;
    size_t depth;
  };
  std::map<std::pair<bool, std::string>, OfCall> steps;
  const auto add = [&](const Slice& slice, const std::string& name, size_t depth) {
    auto [step, fresh] =
        steps.try_emplace({slice.daemon, name}, OfCall{.begin_ns = slice.begin_ns, .depth = depth});
    step->second.begin_ns = std::min(step->second.begin_ns, slice.begin_ns);
    step->second.length += Microseconds(slice.begin_ns, slice.end_ns);
  };
  // The daemon's whole part is a step of the client's call.
  const size_t base = call.client != nullptr && call.daemon != nullptr ? 1 : 0;
  if (base > 0) add(*call.daemon, "daemon", 0);
  std::vector<const Slice*> open;
  for (const Slice* step : call.steps) {
    while (!open.empty() &&
           (open.back()->track != step->track || open.back()->end_ns <= step->begin_ns)) {
      open.pop_back();
    }
    add(*step, step->name, open.size() + (step->daemon ? base : 0));
    open.push_back(step);
  }
  for (const auto& [name, step] : steps) {
    StepSamples& of_step = samples.steps[name];
    of_step.depth = std::max(of_step.depth, step.depth);
    of_step.starts.push_back(Microseconds(whole.begin_ns, step.begin_ns));
    of_step.lengths.push_back(step.length);
  }
}

}  // namespace

std::vector<TraceCalls> SummaryOf(const std::vector<Slice>& slices) {
  // By name, memory, and whether it is a client's.
  std::map<std::tuple<std::string, std::string, bool>, CallSamples> samples;
  for (Call& call : CallsOf(slices)) {
    const std::string name = absl::AsciiStrToLower(call.whole().name);
    std::string memory;
    if (name == "acquire" && call.daemon != nullptr) {
      const bool made = std::any_of(call.steps.begin(), call.steps.end(),
                                    [](const Slice* step) { return step->name == "create"; });
      memory = made ? "fresh" : "retained";
    }
    Add(call, samples[{name, memory, call.client != nullptr}]);
  }
  std::vector<std::pair<double, TraceCalls>> kinds;
  for (auto& [kind, of] : samples) {
    const auto& [name, memory, has_client] = kind;
    TraceCalls calls = {.name = name,
                        .memory = memory,
                        .has_client = has_client,
                        .calls = of.lengths.size(),
                        .length = Quantile(of.lengths, 0.5),
                        .length_99 = Quantile(of.lengths, 0.99)};
    for (auto& [step, times] : of.steps) {
      calls.steps.push_back({.name = step.second,
                             .daemon = step.first,
                             .depth = times.depth,
                             .calls = times.lengths.size(),
                             .start = Quantile(times.starts, 0.5),
                             .length = Quantile(times.lengths, 0.5),
                             .length_99 = Quantile(times.lengths, 0.99)});
    }
    std::stable_sort(calls.steps.begin(), calls.steps.end(),
                     [](const TraceStep& a, const TraceStep& b) {
                       return std::pair(a.start, a.depth) < std::pair(b.start, b.depth);
                     });
    const double all = calls.length * static_cast<double>(calls.calls);
    kinds.emplace_back(all, std::move(calls));
  }
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<TraceCalls> summary;
  for (auto& [all, calls] : kinds) summary.push_back(std::move(calls));
  return summary;
}

std::string TraceView(const trace::Reader& reader, const Layout& layout) {
  Table table({{.header = "CALL", .least = 12},
               {.header = "SIDE"},
               {.header = "CALLS", .align = Align::kRight},
               {.header = "START us", .align = Align::kRight},
               {.header = "MEDIAN us", .align = Align::kRight},
               {.header = "P99 us", .align = Align::kRight, .optional = 1}});
  const auto us = [](double value) { return absl::StrFormat("%.1f", value); };
  for (const TraceCalls& calls : SummaryOf(reader.slices())) {
    table.AddRow({calls.memory.empty() ? calls.name : absl::StrCat(calls.name, ", ", calls.memory),
                  calls.has_client ? "client" : "daemon", absl::StrCat(calls.calls), us(0),
                  us(calls.length), us(calls.length_99)});
    for (const TraceStep& step : calls.steps) {
      table.AddRow({absl::StrCat(std::string(2 * (step.depth + 1), ' '), step.name),
                    step.daemon ? "daemon" : "client", absl::StrCat(step.calls), us(step.start),
                    us(step.length), us(step.length_99)});
    }
  }
  std::string text = absl::StrCat(Counted(reader.slices().size(), "span"));
  if (reader.dropped() > 0) {
    absl::StrAppend(&text, ", and ", reader.dropped(), " dropped: there were too many at a time");
  }
  text += "\n";
  if (!table.empty()) absl::StrAppend(&text, "\n", table.ToString(layout));
  return text;
}

Json TraceJson(const trace::Reader& reader) {
  Json kinds = Json::array();
  for (const TraceCalls& calls : SummaryOf(reader.slices())) {
    Json steps = Json::array();
    for (const TraceStep& step : calls.steps) {
      steps.push_back({{"name", step.name},
                       {"side", step.daemon ? "daemon" : "client"},
                       {"depth", step.depth},
                       {"calls", step.calls},
                       {"start_us", step.start},
                       {"median_us", step.length},
                       {"p99_us", step.length_99}});
    }
    kinds.push_back({{"name", calls.name},
                     {"memory", calls.memory.empty() ? Json() : Json(calls.memory)},
                     {"side", calls.has_client ? "client" : "daemon"},
                     {"calls", calls.calls},
                     {"median_us", calls.length},
                     {"p99_us", calls.length_99},
                     {"steps", std::move(steps)}});
  }
  return {{"spans", reader.slices().size()},
          {"dropped", reader.dropped()},
          {"kinds", std::move(kinds)}};
}

}  // namespace gpumem::cli
