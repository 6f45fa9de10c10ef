// SPDX-License-Identifier: Apache-2.0
// A hash map with bounded insertion time: 256 small maps. A single map copies all its entries as it
// grows past a power of two, which takes 40 ms for a million entries. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"

namespace gpumemd {

template <typename Key, typename Value>
class ShardedMap {
 public:
  // Returns null if there is none. Valid until the next change.
  Value* Find(const Key& key) {
    auto& shard = ShardOf(key);
    auto it = shard.find(key);
    return it == shard.end() ? nullptr : &it->second;
  }
  const Value* Find(const Key& key) const { return const_cast<ShardedMap*>(this)->Find(key); }
  // Requires that the key exists.
  Value& at(const Key& key) { return ShardOf(key).at(key); }
  const Value& at(const Key& key) const { return const_cast<ShardedMap*>(this)->at(key); }
  bool contains(const Key& key) const { return Find(key) != nullptr; }
  size_t size() const { return size_; }
  // Returns the number of entries for which memory is allocated.
  size_t capacity() const {
    size_t all = 0;
    for (const Shard& shard : shards_) all += shard.capacity();
    return all;
  }
  // Returns how many entries an insertion copies at most.
  size_t LargestShard() const {
    size_t largest = 0;
    for (const Shard& shard : shards_) largest = std::max(largest, shard.size());
    return largest;
  }

  // False, with nothing changed, if the key exists already.
  bool Insert(const Key& key, Value value) {
    const bool inserted = ShardOf(key).emplace(key, std::move(value)).second;
    size_ += inserted ? 1 : 0;
    return inserted;
  }
  // False if there is none.
  bool Erase(const Key& key) {
    Shard& shard = ShardOf(key);
    if (shard.erase(key) == 0) return false;
    --size_;
    // Shrinks the shard, so that its memory does not stay at its peak.
    if (shard.capacity() > kLeastCapacity && shard.size() < shard.capacity() / 8) shard.rehash(0);
    return true;
  }

  // Calls visit(key, value) for each entry, in no order.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const Shard& shard : shards_) {
      for (const auto& [key, value] : shard) visit(key, value);
    }
  }

 private:
  using Shard = absl::flat_hash_map<Key, Value>;
  static constexpr size_t kLeastCapacity = 64;

  Shard& ShardOf(const Key& key) {
    // The shard's map uses the lower bits.
    return shards_[absl::Hash<Key>()(key) >> (8 * sizeof(size_t) - 8)];
  }

  std::array<Shard, 256> shards_;
  size_t size_ = 0;
};

}  // namespace gpumemd
