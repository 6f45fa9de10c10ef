// SPDX-License-Identifier: Apache-2.0
// Shared by the pool's benchmarks.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "tests/bench/bed.h"
#include "tests/bench/pool_peer.h"

namespace gpumem::bench {

// A peer and the streams that it is used with. To be made and ended by a thread with a PeerThread.
struct Stage {
  Stage(const PeerKind& kind, int stream_count) : streams(stream_count), peer(kind.make()) {}
  const Streams streams;
  const std::unique_ptr<PoolPeer> peer;
};

// One Stage for all threads of a benchmark: made by the first that comes, ended by the last that
// goes.
class SharedStage {
 public:
  SharedStage(PeerKind kind, int streams) : kind_(std::move(kind)), streams_(streams) {}

  std::shared_ptr<Stage> Get() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Stage> stage = stage_.lock();
    if (stage == nullptr) {
      Settle(*bed->fresh);  // waits until the memory of the one before is free
      stage_ = stage = std::make_shared<Stage>(kind_, streams_);
    }
    return stage;
  }

  // Waits until all of so many threads are here.
  void Meet(int threads) {
    absl::Barrier* barrier;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (barrier_ == nullptr) barrier_ = new absl::Barrier(threads);
      barrier = barrier_;
      if (++arrived_ == threads) {
        barrier_ = nullptr;
        arrived_ = 0;
      }
    }
    if (barrier->Block()) delete barrier;
  }

 private:
  const PeerKind kind_;
  const int streams_;
  std::mutex mutex_;
  std::weak_ptr<Stage> stage_;
  absl::Barrier* barrier_ = nullptr;  // of the threads that have yet to meet
  int arrived_ = 0;
};

// Waits until a large peer's memory is the device's again, so that it is free for the next peer.
inline void AfterLarge() {
  Settle(*bed->fresh);
  WaitForDriver();
}

// "512B", "64KiB", "1GiB".
inline std::string BlockSizeName(uint64_t bytes) {
  if (bytes >= kMiB) return SizeName(bytes);
  return bytes >= 1024 ? absl::StrCat(bytes / 1024, "KiB") : absl::StrCat(bytes, "B");
}

inline constexpr uint64_t kBlockSizes[] = {512,       4 << 10,    64 << 10, kMiB,
                                           16 * kMiB, 256 * kMiB, kGiB};
inline constexpr int kThreadCounts[] = {2, 4, 8, 16, 32};

// Register their part; pool_table.cc prints the results.
void RegisterPoolSizes(const std::vector<PeerKind>& peers);
void RegisterPoolStreams(const std::vector<PeerKind>& peers);
void RegisterPoolTraces(const std::vector<PeerKind>& peers);
void RegisterPoolFragmentation(const std::vector<PeerKind>& peers, uint64_t operations);

}  // namespace gpumem::bench
