// SPDX-License-Identifier: Apache-2.0
// How much more than it needs does an allocator hold after millions of operations?
//
//   PoolFragmentation/steady/PEER    sizes are log-uniform from 512 bytes to 64 MiB
//   PoolFragmentation/shifting/PEER  the maximum is another in each tenth of the operations, so
//                                    that one tenth leaves the wrong sizes for the next
//
// An iteration is all operations. About 16 GiB are live all the time: below that an operation
// allocates, else it frees any live block. One thread, one stream. No allocator that cannot move
// blocks comes through `shifting` unharmed: when half of the small blocks are gone, their holes are
// too small for the large ones.
//
// Counters: `reserved_per_live` at the end, `worst` of the ends of all tenths, and `peak_per_live`,
// the most reserved bytes by the most live bytes.
#include <algorithm>
#include <cmath>

#include "tests/bench/pool_stage.h"
#include "tests/bench/trace.h"

namespace gpumem::bench {
namespace {

constexpr uint64_t kLive = 16 * kGiB, kSteadyMax = 64 * kMiB;
constexpr uint64_t kShiftingMax[] = {kMiB,       64 * kMiB, 4 * kMiB,   256 * kMiB, 16 * kMiB,
                                     512 * kMiB, 2 * kMiB,  128 * kMiB, 8 * kMiB,   64 * kMiB};

void Fragment(benchmark::State& state, const PeerKind& kind, bool shifting, uint64_t operations) {
  struct Live {
    Block block;
    uint64_t bytes;  // as asked for
  };
  const PeerThread thread;
  {
    const Stage stage(kind, 1);
    PoolPeer& peer = *stage.peer;
    void* const stream = stage.streams[0];
    Random random(5);
    std::vector<Live> blocks;
    uint64_t live = 0, live_peak = 0;
    double ratio = 0, worst = 0;
    for (auto _ : state) {
      for (const uint64_t shifting_max : kShiftingMax) {
        const uint64_t max_bytes = shifting ? shifting_max : kSteadyMax;
        for (uint64_t i = 0; i < operations / std::size(kShiftingMax); ++i) {
          if (live < kLive) {
            const uint64_t bytes = random.LogUniform(512, max_bytes);
            blocks.push_back({.block = peer.Allocate(bytes, stream), .bytes = bytes});
            live += bytes;
            live_peak = std::max(live_peak, live);
          } else {
            Live& freed = blocks[random.Uniform(0, blocks.size() - 1)];
            peer.Free(freed.block, stream);
            live -= freed.bytes;
            freed = blocks.back();
            blocks.pop_back();
          }
        }
        ratio = static_cast<double>(peer.Reserved()) / static_cast<double>(live);
        worst = std::max(worst, ratio);
      }
    }
    state.SetItemsProcessed(static_cast<int64_t>(operations));
    state.counters["operations"] = static_cast<double>(operations);
    state.counters["blocks"] = static_cast<double>(blocks.size());
    state.counters["reserved_per_live"] = ratio;
    state.counters["worst"] = worst;
    state.counters["peak_per_live"] =
        static_cast<double>(peer.ReservedPeak()) / static_cast<double>(live_peak);
    peer.Tell(state);
    for (const Live& left : blocks) peer.Free(left.block, stream);
  }
  AfterLarge();
}

}  // namespace

void RegisterPoolFragmentation(const std::vector<PeerKind>& peers, uint64_t operations) {
  for (const PeerKind& kind : peers) {
    // These do not report their reserved bytes.
    if (kind.name == "malloc" || kind.name == "cudaMalloc") continue;
    for (const bool shifting : {false, true}) {
      benchmark::RegisterBenchmark(
          absl::StrCat("PoolFragmentation/", shifting ? "shifting/" : "steady/", kind.name).c_str(),
          [=](auto& state) { Fragment(state, kind, shifting, operations); })
          ->UseRealTime()
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace gpumem::bench
