// SPDX-License-Identifier: Apache-2.0
// The blocks that a program has from its pools, and those that it has opened of others, by address.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/synchronization/mutex.h"

namespace gpumem::preload {

class Blocks {
 public:
  struct Block {
    uint64_t bytes = 0;     // as the program asked
    void* owner = nullptr;  // its device; null: opened
    bool stream_ordered = false;
  };
  struct Found {
    uint64_t base = 0;
    Block block;
  };

  void Put(uint64_t base, const Block& block) {
    absl::MutexLock lock(&mutex_);
    blocks_.insert_or_assign(base, block);
  }
  // Returns the block that begins there, and forgets it, if `owned` says of which sort it is.
  std::optional<Block> Take(uint64_t base, bool owned) {
    absl::MutexLock lock(&mutex_);
    const auto it = blocks_.find(base);
    if (it == blocks_.end() || (it->second.owner != nullptr) != owned) return std::nullopt;
    const Block block = it->second;
    blocks_.erase(it);
    return block;
  }
  // Returns the block that contains an address.
  std::optional<Found> Find(uint64_t address) const {
    absl::MutexLock lock(&mutex_);
    auto it = blocks_.upper_bound(address);
    if (it == blocks_.begin()) return std::nullopt;
    --it;
    if (address - it->first >= it->second.bytes) return std::nullopt;
    return Found{.base = it->first, .block = it->second};
  }
  // Returns an owner's blocks, and forgets them.
  std::vector<Found> TakeAll(const void* owner) {
    std::vector<Found> taken;
    absl::MutexLock lock(&mutex_);
    for (auto it = blocks_.begin(); it != blocks_.end();) {
      if (it->second.owner != owner) {
        ++it;
        continue;
      }
      taken.push_back({.base = it->first, .block = it->second});
      it = blocks_.erase(it);
    }
    return taken;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::btree_map<uint64_t, Block> blocks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::preload
