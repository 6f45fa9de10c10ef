// SPDX-License-Identifier: Apache-2.0
// The charges under an account that can be taken back from their holders, in the order in which
// they are.
#pragma once

#include <cstdint>

#include "absl/container/btree_map.h"
#include "daemon/core/ids.h"

namespace gpumemd {

// Holders with the lowest priority lose theirs first, and of these the newest segments go first.
struct ChargeRank {
  int32_t priority = 0;  // of the segment's tenant
  SegmentId segment{};

  bool operator==(const ChargeRank&) const = default;
  bool operator<(const ChargeRank& other) const {
    return priority != other.priority ? priority < other.priority : other.segment < segment;
  }
};

class RevocableCharges {
 public:
  using Ranked = absl::btree_map<ChargeRank, uint64_t>;  // bytes

  void Add(const ChargeRank& rank, uint64_t bytes) {
    ranked_.emplace(rank, bytes);
    bytes_[rank.priority] += bytes;
  }
  void Remove(const ChargeRank& rank, uint64_t bytes) {
    ranked_.erase(rank);
    const auto sum = bytes_.find(rank.priority);
    if ((sum->second -= bytes) == 0) bytes_.erase(sum);
  }
  // Add or remove all charges of another list.
  void AddAll(const RevocableCharges& other) {
    for (const auto& [rank, bytes] : other.ranked_) Add(rank, bytes);
  }
  void RemoveAll(const RevocableCharges& other) {
    for (const auto& [rank, bytes] : other.ranked_) Remove(rank, bytes);
  }

  const Ranked& ranked() const { return ranked_; }
  // Returns the sum of the charges with a lower priority. Takes time in proportion to the different
  // priorities.
  uint64_t BytesBelow(int64_t priority) const {
    uint64_t bytes = 0;
    for (const auto& [each, sum] : bytes_) {
      if (each >= priority) break;
      bytes += sum;
    }
    return bytes;
  }

  bool operator==(const RevocableCharges& other) const { return ranked_ == other.ranked_; }

 private:
  Ranked ranked_;
  absl::btree_map<int32_t, uint64_t> bytes_;  // by priority
};

}  // namespace gpumemd
