// SPDX-License-Identifier: Apache-2.0
// A check, not a time: a tenant is at its limit, its client drops what it has by destructors, which
// need not wait for the daemon, and acquires again at once. The daemon must not refuse that.
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/bed.h"
#include "tests/bench/latency/latency.h"

namespace gpumem::bench {
namespace {

constexpr uint64_t kBytes = 2 * kMiB;
constexpr int kSegments = 1000;  // the limit of tenant "limited" holds exactly these
constexpr int kAtOnce = 250;

struct Result {
  int releases = 0, refused = 0;
  int releases_one_by_one = 0, refused_one_by_one = 0;
  // Of another session of the tenant, right after this one has dropped all it had.
  bool other_refused = false;
  absl::Duration next;  // the acquire after a thousand releases
};
std::optional<Result>& TheResult() {
  static auto* const result = new std::optional<Result>;
  return *result;
}

std::vector<Segment> FillLimit(Client& client) {
  std::vector<Segment> segments;
  for (int left = kSegments; left > 0; left -= kAtOnce) {
    for (Segment& each : OrDie(client.AcquireMany({.bytes = kBytes}, kAtOnce), "fill the limit")) {
      segments.push_back(std::move(each));
    }
  }
  // It is the limit.
  if (!absl::IsResourceExhausted(client.Acquire({.bytes = kBytes}).status())) {
    OrDie(absl::InternalError("the tenant is not at its limit"), "fill the limit");
  }
  return segments;
}

// True if refused. Other errors end the program.
bool Refused(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) OrDie(status, "acquire at the limit");
  return !status.ok();
}

void ReleasesAtLimit(benchmark::State& state) {
  Result result;
  const auto client = OrDie(bed->daemon->Connect("limited"), "connect");
  for (auto _ : state) {
    // A thousand at once, then one of the whole limit.
    std::vector<Segment> segments = FillLimit(*client);
    result.releases += static_cast<int>(segments.size());
    segments.clear();
    absl::StatusOr<Segment> whole = absl::UnknownError("not tried");
    result.next = Time([&] { whole = client->Acquire({.bytes = kBytes * uint64_t{kSegments}}); });
    result.refused += Refused(whole.status()) ? 1 : 0;
    // One by one, each of the whole limit.
    for (int i = 0; i < kSegments; ++i) {
      whole = absl::UnknownError("dropped");  // the destructor
      whole = client->Acquire({.bytes = kBytes * uint64_t{kSegments}});
      result.releases_one_by_one += 1;
      result.refused_one_by_one += Refused(whole.status()) ? 1 : 0;
    }
    // Another session does not know of this one's pending releases.
    const auto other = OrDie(bed->daemon->Connect("limited"), "connect");
    whole = absl::UnknownError("dropped");
    whole = other->Acquire({.bytes = kBytes * uint64_t{kSegments}});
    result.other_refused = Refused(whole.status());
    whole = absl::UnknownError("dropped");
    state.SetIterationTime(absl::ToDoubleSeconds(result.next));
  }
  state.counters["releases"] = result.releases;
  state.counters["refused"] = result.refused;
  state.counters["releases_one_by_one"] = result.releases_one_by_one;
  state.counters["refused_one_by_one"] = result.refused_one_by_one;
  state.counters["other_session_refused"] = result.other_refused ? 1 : 0;
  TheResult() = result;
}

}  // namespace

void RegisterReleasesAtLimit(const LatencyRun&) {
  Add("Latency/releases-at-limit", 1, ReleasesAtLimit);
}

void PrintReleasesAtLimit() {
  if (!TheResult()) return;
  const Result& result = *TheResult();
  std::cout << absl::StreamFormat(
      "\nat the limit, after %d releases by destructors: the next acquire, of the whole limit, %s, "
      "%.1f us\none by one: %d of %d refused (to reach: 0); another session at once: %s\n",
      result.releases, result.refused == 0 ? "granted" : "REFUSED",
      absl::ToDoubleMicroseconds(result.next), result.refused_one_by_one,
      result.releases_one_by_one, result.other_refused ? "refused" : "granted");
}

}  // namespace gpumem::bench
