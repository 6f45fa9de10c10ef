// SPDX-License-Identifier: Apache-2.0
// Counts the bytes that are out of the heaps, cached or used, and their peak. Each shard is counted
// by itself, and so are the large blocks: threads of different shards do not write to one cache
// line.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpumem::internal {

// Thread-safe. A part's bytes are never below zero.
template <size_t kShards>
class TakenBytes {
 public:
  static constexpr size_t kLarge = 0;  // the part of large blocks
  static constexpr size_t PartOfShard(size_t shard) { return shard + 1; }
  // How much each part may have grown since the peak was last looked at, if several shards are in
  // use. With one shard, which one thread uses, the peak is exact.
  static constexpr uint64_t kSlack = uint64_t{4} << 20;

  // Has the first `shards` shards in use. Their number only grows.
  void Use(size_t shards) { used_ = shards + 1; }

  void Add(size_t part, uint64_t bytes) {
    Part& one = parts_[part];
    const uint64_t now = one.bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (now <= one.looks_above.load(std::memory_order_relaxed)) return;
    one.looks_above.store(now + Slack(), std::memory_order_relaxed);
    Look();
  }
  void Subtract(size_t part, uint64_t bytes) {
    Part& one = parts_[part];
    const uint64_t now = one.bytes.fetch_sub(bytes, std::memory_order_relaxed) - bytes;
    // A later growth by that much is looked at again.
    if (one.looks_above.load(std::memory_order_relaxed) > now + Slack()) {
      one.looks_above.store(now + Slack(), std::memory_order_relaxed);
    }
  }

  uint64_t value() const {
    uint64_t sum = 0;
    for (size_t i = 0; i < used_; ++i) sum += parts_[i].bytes.load(std::memory_order_relaxed);
    return sum;
  }
  // Of value(), since the last ResetPeak(). With n shards in use it may be up to n + 1 times kSlack
  // too low, and further off while threads change a part at the same moment.
  uint64_t peak() const { return std::max(peak_.load(std::memory_order_relaxed), value()); }
  void ResetPeak() { peak_ = value(); }

 private:
  struct alignas(128) Part {
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> looks_above{0};
  };

  uint64_t Slack() const { return used_.load(std::memory_order_relaxed) > 2 ? kSlack : 0; }
  void Look() {
    const uint64_t now = value();
    uint64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
    }
  }

  std::array<Part, kShards + 1> parts_;
  alignas(128) std::atomic<size_t> used_{2};
  alignas(128) std::atomic<uint64_t> peak_{0};
};

}  // namespace gpumem::internal
