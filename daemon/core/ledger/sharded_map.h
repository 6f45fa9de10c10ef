// A hash map that never takes long: many small ones. A single one copies all that it has as it
// grows past a power of two, which takes 40 ms of a million entries. Not thread-safe.
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
  // Null: there is none. Valid until the next change.
  Value* Find(const Key& key) {
    auto& shard = ShardOf(key);
    auto it = shard.find(key);
    return it == shard.end() ? nullptr : &it->second;
  }
  const Value* Find(const Key& key) const { return const_cast<ShardedMap*>(this)->Find(key); }
  // Requires that there is one.
  Value& at(const Key& key) { return ShardOf(key).at(key); }
  const Value& at(const Key& key) const { return const_cast<ShardedMap*>(this)->at(key); }
  bool contains(const Key& key) const { return Find(key) != nullptr; }
  size_t size() const { return size_; }
  // Entries for which there is memory.
  size_t capacity() const {
    size_t all = 0;
    for (const Shard& shard : shards_) all += shard.capacity();
    return all;
  }
  // What an insertion copies at most.
  size_t LargestShard() const {
    size_t largest = 0;
    for (const Shard& shard : shards_) largest = std::max(largest, shard.size());
    return largest;
  }

  // False, and nothing has changed, where there is one already.
  bool Insert(const Key& key, Value value) {
    const bool inserted = ShardOf(key).emplace(key, std::move(value)).second;
    size_ += inserted ? 1 : 0;
    return inserted;
  }
  // False where there is none.
  bool Erase(const Key& key) {
    Shard& shard = ShardOf(key);
    if (shard.erase(key) == 0) return false;
    --size_;
    // Its memory is not to stay what it was when there were most.
    if (shard.capacity() > kLeastCapacity && shard.size() < shard.capacity() / 8) shard.rehash(0);
    return true;
  }

  // visit(key, value), in no order.
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
    // The map itself goes by the lower bits.
    return shards_[absl::Hash<Key>()(key) >> (8 * sizeof(size_t) - 8)];
  }

  std::array<Shard, 256> shards_;
  size_t size_ = 0;
};

}  // namespace gpumemd
