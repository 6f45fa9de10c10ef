// SPDX-License-Identifier: Apache-2.0
// Predicts from a pool's recent growth how much memory it needs next. It touches no memory, reads
// no clock and takes no lock.
//
// A program that starts, or whose working set grows, asks for memory with nearly each allocation.
// Each growth costs a call to the daemon and some calls of the driver per segment. So a pool that
// has grown by much in a burst leases a part of that at once, in larger segments. After the burst
// at most one such step is unused.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gpumem::internal {

class GrowthForecast {
 public:
  // More allocations than that between two growths end a burst.
  static constexpr uint64_t kGap = 32;
  // A step is that part of the burst before it.
  static constexpr uint64_t kBurstParts = 2;
  // A step leaves at most that part of the need reserved beyond it.
  static constexpr uint64_t kSpareParts = 11;
  // A step has about that many segments.
  static constexpr uint64_t kSegments = 8;

  // Returns how many bytes to lease now, of which the caller may need less, when the pool grows.
  // `allocations`: those that the pool has served in all, never fewer than in the last call;
  // `needed`: the bytes of all blocks, of the one to come too; `reserved`: the pool's leased bytes.
  uint64_t Step(uint64_t allocations, uint64_t needed, uint64_t reserved) {
    if (allocations - last_ > kGap) burst_ = 0;
    last_ = allocations;
    const uint64_t most = needed + needed / kSpareParts;
    return std::min(burst_ / kBurstParts, most - std::min(most, reserved));
  }
  // Notes leased bytes.
  void Grew(uint64_t bytes) { burst_ += bytes; }
  // Ends the burst: memory was denied, or another session asked for it.
  void Stop() { burst_ = 0; }

 private:
  uint64_t last_ = 0;   // the allocations before the last growth
  uint64_t burst_ = 0;  // bytes leased in this burst
};

}  // namespace gpumem::internal
