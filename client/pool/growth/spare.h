// SPDX-License-Identifier: Apache-2.0
// Decides how much more than it needs a pool may reserve before it moves segments instead. It
// touches no memory, reads no clock and takes no lock.
//
// Moving costs time, and reserving more costs memory. Most programs move a few segments in
// thousands of allocations: a 32nd of spare memory suffices. Blocks of random sizes of hundreds of
// MiB would have the pool move all the time: then it may reserve more, up to a tenth.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpumem::internal {

class SparePolicy {
 public:
  static constexpr uint64_t kParts = 32;      // the spare memory is at least a 32nd of the need
  static constexpr uint64_t kStepParts = 64;  // and grows by a 64th
  static constexpr uint64_t kMostParts = 10;  // up to a tenth
  static constexpr uint64_t kMostSteps = kStepParts / kMostParts - kStepParts / kParts;
  // The approximate time of a move in the driver, in nanoseconds.
  static constexpr uint64_t kMoveNs = 60'000, kSegmentNs = 9'000;
  // Moves may take that much time of each allocation on average.
  static constexpr uint64_t kBudgetNs = 500;
  // And that much more before the spare memory grows.
  static constexpr uint64_t kCreditNs = 4'000'000;

  // Notes a move of that many segments, after `allocations` in all.
  void Moved(uint64_t allocations, size_t segments) {
    const uint64_t since = allocations - std::min(allocations, last_);
    last_ = allocations;
    spent_ns_ -= std::min(spent_ns_, since * kBudgetNs);
    spent_ns_ += kMoveNs + segments * kSegmentNs;
    if (spent_ns_ <= kCreditNs) return;
    spent_ns_ = 0;
    steps_ = std::min(steps_ + 1, kMostSteps);
  }
  // Begins anew: memory was denied, or another session asked for it.
  void Reset() { spent_ns_ = steps_ = 0; }

  // Returns how much a pool that needs that many bytes may reserve before it moves segments.
  uint64_t Enough(uint64_t needed) const {
    return needed + needed / kParts + needed / kStepParts * steps_;
  }

 private:
  uint64_t last_ = 0;      // the allocations before the last move
  uint64_t spent_ns_ = 0;  // beyond the budget
  uint64_t steps_ = 0;
};

}  // namespace gpumem::internal
