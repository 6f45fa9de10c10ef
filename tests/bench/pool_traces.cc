// SPDX-License-Identifier: Apache-2.0
// The traces (trace.h), replayed. No memory is touched, and no work is on the streams.
//
//   PoolTrace/TRACE/PEER    one thread. An iteration is the whole trace, or as much of it as
//                           takes kTimeout
//   PoolRandom/PEER         several threads on one peer, each with a separate stream and all
//                           of trace random-1MiB
//
// Counters:
// - `ns_per_op`: the best of the replays on a peer that has its memory already.
// - `cold_ns_per_op`: the first replay, in which it takes it from the device or the daemon.
// - `walk_ns`: the loop without a peer.
// - `reserved_per_live`: the most reserved bytes by the most live bytes at once, as requested, over
//   all replays.
// - `part`: the fraction of the trace.
#include <algorithm>
#include <map>

#include "tests/bench/pool_stage.h"
#include "tests/bench/trace.h"

namespace gpumem::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(3);
constexpr int kReplays = 3;
constexpr char kThreadsTrace[] = "random-1MiB";

const Trace& TraceOf(const std::string& name) {
  static auto* const made = new std::map<std::string, Trace>;
  Trace& trace = (*made)[name];
  if (trace.events.empty()) trace = OrDie(MakeTrace(name), "trace");
  return trace;
}

struct Replayed {
  size_t events = 0;
  double ns_per_op = 0;
  absl::Duration time;
};

// Stream number `i` of the trace is `first_stream + i` of these.
Replayed Replay(const Trace& trace, PoolPeer& peer, const Streams& streams,
                size_t first_stream = 0) {
  std::vector<Block> blocks(trace.ids);
  Replayed done;
  done.time = Time([&] {
    const absl::Time end = absl::Now() + kTimeout;
    for (const TraceEvent& event : trace.events) {
      void* const stream = streams[first_stream + event.stream];
      Block& block = blocks[event.id];
      if (event.bytes > 0) {
        block = peer.Allocate(event.bytes, stream);
      } else {
        peer.Free(block, stream);
        block.data = nullptr;
      }
      if (++done.events % 256 == 0 && absl::Now() > end) break;
    }
  });
  done.ns_per_op = absl::ToDoubleNanoseconds(done.time) / static_cast<double>(done.events);
  for (const Block& block : blocks) {
    if (block.data != nullptr) peer.Free(block, streams[first_stream]);
  }
  return done;
}

void ReplayTrace(benchmark::State& state, const PeerKind& kind, const std::string& name) {
  const PeerThread thread;
  const Trace& trace = TraceOf(name);
  {
    const Streams streams(static_cast<int>(trace.streams));
    Replay(trace, *Checked(kind.make(), kind.alignment), streams);  // dies where blocks overlap
    state.counters["walk_ns"] = Replay(trace, *MakeIdlePeer(), streams).ns_per_op;
  }
  AfterLarge();
  {
    const Stage stage(kind, static_cast<int>(trace.streams));
    PoolPeer& peer = *stage.peer;
    const Replayed cold = Replay(trace, peer, stage.streams);
    double best = cold.ns_per_op;
    size_t events = cold.events;
    for (auto _ : state) {
      const Replayed warm = Replay(trace, peer, stage.streams);
      state.SetIterationTime(absl::ToDoubleSeconds(warm.time));
      best = std::min(best, warm.ns_per_op);
      events = std::max(events, warm.events);
    }
    const auto live = static_cast<double>(LivePeakBytes(trace, events));
    const auto reserved = static_cast<double>(peer.ReservedPeak());
    state.counters["ns_per_op"] = best;
    state.counters["cold_ns_per_op"] = cold.ns_per_op;
    state.counters["live_MiB"] = live / kMiB;
    state.counters["reserved_MiB"] = reserved / kMiB;
    state.counters["reserved_per_live"] = reserved / live;
    state.counters["part"] = static_cast<double>(events) / static_cast<double>(trace.events.size());
    peer.Tell(state);
  }
  AfterLarge();
}

void ReplayByThreads(benchmark::State& state, SharedStage& shared) {
  const PeerThread thread;
  const Trace& trace = TraceOf(kThreadsTrace);
  const std::shared_ptr<Stage> stage = shared.Get();
  const auto stream = static_cast<size_t>(state.thread_index());
  Replay(trace, *stage->peer, stage->streams, stream);
  double ns_per_op = 0;
  for (auto _ : state) {
    const Replayed warm = Replay(trace, *stage->peer, stage->streams, stream);
    state.SetIterationTime(absl::ToDoubleSeconds(warm.time));
    ns_per_op += warm.ns_per_op;
  }
  state.counters["ns_per_op"] = benchmark::Counter(
      ns_per_op / static_cast<double>(state.iterations()), benchmark::Counter::kAvgThreads);
}

}  // namespace

void RegisterPoolTraces(const std::vector<PeerKind>& peers) {
  for (const std::string& trace : TraceNames()) {
    for (const PeerKind& kind : peers) {
      benchmark::RegisterBenchmark(absl::StrCat("PoolTrace/", trace, "/", kind.name).c_str(),
                                   [=](auto& state) { ReplayTrace(state, kind, trace); })
          ->UseManualTime()
          ->Iterations(kReplays)
          ->Unit(benchmark::kMillisecond);
    }
  }
  TraceOf(kThreadsTrace);  // before threads ask for it
  for (const PeerKind& kind : peers) {
    if (!kind.scales) continue;
    const auto shared = std::make_shared<SharedStage>(kind, 32);
    auto* const row =
        benchmark::RegisterBenchmark(absl::StrCat("PoolRandom/", kind.name).c_str(),
                                     [=](auto& state) { ReplayByThreads(state, *shared); });
    row->UseManualTime()->Iterations(kReplays)->Unit(benchmark::kMillisecond)->Threads(1);
    for (const int threads : kThreadCounts) row->Threads(threads);
  }
}

}  // namespace gpumem::bench
