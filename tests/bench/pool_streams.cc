// SPDX-License-Identifier: Apache-2.0
// Memory that was freed on one stream is wanted on another.
//
//   PoolCrossStream/idle/PEER/SIZE  the first stream has no work: two blocks an iteration, one on
//                                   each stream
//   PoolCrossStream/busy/PEER/SIZE  it is still at work on the block that was freed. The time is
//                                   that of the allocation on the second stream. GPU only
//
// Counters: `same`, the share of iterations in which the second stream got the first one's
// memory; the pool's own: seen to be done (after_event), made to wait (dependencies), growths.
#include "tests/bench/pool_stage.h"

namespace gpumem::bench {
namespace {

constexpr uint64_t kSizes[] = {64 << 10, 16 * kMiB};
constexpr int kBusyIterations = 2000;

void Tell(benchmark::State& state, const PoolPeer& peer, uint64_t same) {
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["same"] = static_cast<double>(same) / iterations;
  state.counters["reserved_MiB"] = static_cast<double>(peer.Reserved()) / kMiB;
  peer.Tell(state);
}

void Idle(benchmark::State& state, const PeerKind& kind, uint64_t bytes) {
  const PeerThread thread;
  const Stage stage(kind, 2);
  PoolPeer& peer = *stage.peer;
  void *const one = stage.streams[0], *const other = stage.streams[1];
  peer.Free(peer.Allocate(bytes, one), one);
  uint64_t same = 0;
  for (auto _ : state) {
    const Block first = peer.Allocate(bytes, one);
    peer.Free(first, one);
    const Block second = peer.Allocate(bytes, other);
    peer.Free(second, other);
    same += first.data == second.data ? 1 : 0;
  }
  state.SetItemsProcessed(static_cast<int64_t>(2 * state.iterations()));
  Tell(state, peer, same);
}

void Busy(benchmark::State& state, const PeerKind& kind, uint64_t bytes) {
  const PeerThread thread;
  const Stage stage(kind, 2);
  PoolPeer& peer = *stage.peer;
  void *const one = stage.streams[0], *const other = stage.streams[1];
  peer.Free(peer.Allocate(bytes, one), one);
  uint64_t same = 0;
  for (auto _ : state) {
    const Block first = peer.Allocate(bytes, one);
    for (int i = 0; i < 4; ++i) KeepBusy(first, one);
    peer.Free(first, one);
    Block second;
    state.SetIterationTime(
        absl::ToDoubleSeconds(Time([&] { second = peer.Allocate(bytes, other); })));
    KeepBusy(second, other);
    peer.Free(second, other);
    same += first.data == second.data ? 1 : 0;
    WaitFor(one);
    WaitFor(other);
  }
  Tell(state, peer, same);
}

}  // namespace

void RegisterPoolStreams(const std::vector<PeerKind>& peers) {
  for (const uint64_t bytes : kSizes) {
    for (const PeerKind& kind : peers) {
      const std::string rest = absl::StrCat(kind.name, "/", BlockSizeName(bytes));
      benchmark::RegisterBenchmark(absl::StrCat("PoolCrossStream/idle/", rest).c_str(),
                                   [=](auto& state) { Idle(state, kind, bytes); })
          ->UseRealTime();
      // cudaMalloc's free waits for the work.
      if (bed->device.backend != Backend::kCuda || !kind.scales) continue;
      benchmark::RegisterBenchmark(absl::StrCat("PoolCrossStream/busy/", rest).c_str(),
                                   [=](auto& state) { Busy(state, kind, bytes); })
          ->UseManualTime()
          ->Iterations(kBusyIterations);
    }
  }
}

}  // namespace gpumem::bench
