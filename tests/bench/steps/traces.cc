// SPDX-License-Identifier: Apache-2.0
// Traces: the cost of spans, and a trace of acquires, at the client and in the daemon.
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/trace/recording.h"
#include "tests/bench/bed.h"
#include "tests/bench/benchmarks.h"
#include "tests/support/child.h"

namespace gpumem::bench {
namespace {

// Fewer than a ring holds.
constexpr int kSpansAtOnce = 1000;

// Times kSpansAtOnce spans at a time.
void TimeSpans(benchmark::State& state, trace::Recording* recording) {
  std::vector<trace::Event> events;
  for (auto _ : state) {
    const absl::Duration time = Time([] {
      for (int i = 0; i < kSpansAtOnce; ++i) {
        const trace::Span span("span");
        benchmark::ClobberMemory();
      }
    });
    state.SetIterationTime(absl::ToDoubleSeconds(time));
    events.clear();
    if (recording != nullptr) recording->Take(&events);
  }
  state.counters["ns_per_span"] =
      benchmark::Counter(kSpansAtOnce / 1e9, benchmark::Counter::kIsIterationInvariantRate |
                                                 benchmark::Counter::kInvert);
}

void SpanOff(benchmark::State& state) { TimeSpans(state, nullptr); }

void SpanOn(benchmark::State& state) {
  const auto recording = OrDie(trace::Recording::Start(), "recording");
  TimeSpans(state, recording.get());
  if (recording->dropped() > 0) OrDie(absl::InternalError("spans were dropped"), "spans");
}

}  // namespace

void RegisterTraces() {
  Add("TraceSpan/Off", 2000, SpanOff);
  Add("TraceSpan/On", 2000, SpanOn);
}

int TraceAcquires(const std::string& backend, const std::string& path) {
  constexpr uint64_t kBytes = 64 * kMiB;
  const std::string own = absl::StrCat(path, ".client");
  unlink(own.c_str());
  setenv("GPUMEM_TRACE_FILE", own.c_str(), 1);
  MakeBed(backend);
  testing::Child ctl({testing::ProgramPath("gpumemctl"), "--runtime-dir",
                      bed->daemon->runtime_dir(), "trace", "on", "--seconds", "3", "--out", path,
                      "--force", "--with", own});
  const UniqueFd ended(static_cast<int>(syscall(SYS_pidfd_open, ctl.pid(), 0)));
  pollfd event = {.fd = ended.get(), .events = POLLIN, .revents = 0};
  while (poll(&event, 1, 0) == 0) {
    for (Client* client : {bed->retained.get(), bed->fresh.get()}) {
      Segment segment = OrDie(client->Acquire({.bytes = kBytes}), "acquire");
      OrDie(segment.Release(), "release");
      if (client == bed->fresh.get()) Settle(*client);
    }
  }
  const int code = ctl.Wait();
  delete bed;
  return code;
}

}  // namespace gpumem::bench
