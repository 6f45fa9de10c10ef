// SPDX-License-Identifier: Apache-2.0
// A block is allocated and freed at once: one size, one or several threads.
//
//   PoolAllocFree/PEER/SIZE             one thread
//   PoolAllocFree/PEER-default/SIZE     the same on the default stream (the pool alone, GPU)
//   PoolAllocFree/floor                 the driver's part of that (GPU): whether the stream is
//                                       being captured, asked twice
//   PoolThreads/own/PEER/SIZE/threads:N  one stream for each thread
//   PoolThreads/one/PEER/SIZE/threads:N  all on the same stream
#include <algorithm>

#include "tests/bench/pool_stage.h"

namespace gpumem::bench {
namespace {

enum class On { kOwnStreams, kOneStream, kDefaultStream };

void AllocFree(benchmark::State& state, SharedStage& shared, uint64_t bytes, On streams) {
  const PeerThread thread;
  const std::shared_ptr<Stage> stage = shared.Get();
  PoolPeer& peer = *stage->peer;
  void* const stream = streams == On::kDefaultStream ? nullptr
                       : streams == On::kOwnStreams  ? stage->streams[state.thread_index()]
                                                     : stage->streams[0];
  // Allocates as much memory as all threads use at once before the timing starts.
  const Block first = peer.Allocate(bytes, stream);
  shared.Meet(state.threads());
  peer.Free(first, stream);
  for (auto _ : state) {
    const Block block = peer.Allocate(bytes, stream);
    benchmark::DoNotOptimize(block.data);
    peer.Free(block, stream);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}

// The driver's share of an allocation and its free.
void Questions(benchmark::State& state) {
  const PeerThread thread;
  const Streams streams(1);
  void* const stream = streams[0];
  for (auto _ : state) {
    benchmark::DoNotOptimize(IsCaptured(stream));
    benchmark::DoNotOptimize(IsCaptured(stream));
  }
}

bool Fits(uint64_t bytes, int threads) {
  return bytes * static_cast<uint64_t>(threads) <= bed->device.capacity_bytes / 2;
}

benchmark::internal::Benchmark* Register(const std::string& name, const PeerKind& kind,
                                         uint64_t bytes, On streams) {
  const auto shared = std::make_shared<SharedStage>(
      kind, streams == On::kOwnStreams
                ? *std::max_element(std::begin(kThreadCounts), std::end(kThreadCounts))
                : 1);
  return benchmark::RegisterBenchmark(
             name.c_str(), [=](auto& state) { AllocFree(state, *shared, bytes, streams); })
      ->UseRealTime();
}

}  // namespace

void RegisterPoolSizes(const std::vector<PeerKind>& peers) {
  if (OnGpu()) {
    benchmark::RegisterBenchmark("PoolAllocFree/floor", Questions)->UseRealTime();
  }
  for (const uint64_t bytes : kBlockSizes) {
    for (const PeerKind& kind : peers) {
      if (!Fits(bytes, 1)) continue;
      Register(absl::StrCat("PoolAllocFree/", kind.name, "/", BlockSizeName(bytes)), kind, bytes,
               On::kOneStream);
    }
  }
  for (const uint64_t bytes : kBlockSizes) {
    if (bed->device.backend != Backend::kCuda || !Fits(bytes, 1)) continue;
    const PeerKind& pool = peers.front();
    Register(absl::StrCat("PoolAllocFree/", pool.name, "-default/", BlockSizeName(bytes)), pool,
             bytes, On::kDefaultStream);
  }
  for (const bool own : {true, false}) {
    for (const uint64_t bytes : kBlockSizes) {
      for (const PeerKind& kind : peers) {
        if (!kind.scales) continue;
        auto* const row = Register(absl::StrCat("PoolThreads/", own ? "own/" : "one/", kind.name,
                                                "/", BlockSizeName(bytes)),
                                   kind, bytes, own ? On::kOwnStreams : On::kOneStream);
        row->MinTime(0.1)->Threads(1);
        for (const int threads : kThreadCounts) {
          if (Fits(bytes, threads)) row->Threads(threads);
        }
      }
    }
  }
}

}  // namespace gpumem::bench
