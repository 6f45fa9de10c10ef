// SPDX-License-Identifier: Apache-2.0
// The blocks that one thread freed and caches, by stream: it reuses them at once.
//
// The thread works under a lock that other threads take only briefly, to collect all cached memory
// when memory is short (owner_lock.h). No function is called with that lock held.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/pool/block_heap.h"
#include "client/pool/owner_lock.h"
#include "client/pool/size_class.h"
#include "client/pool/stream_api.h"
#include "client/pool/stream_order.h"

namespace gpumem::internal {

// Changed by one thread at a time; any thread may read.
class Counter {
 public:
  void Add(uint64_t more) { Set(value() + more); }
  void Subtract(uint64_t less) { Set(value() - less); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  void Set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::atomic<uint64_t> value_{0};
};

// Blocks freed on one stream.
struct KeptBlocks {
  KeptBlocks(Stream name, Timeline* of) : stream(name), timeline(of) {}

  struct Class {
    Chunk* first = nullptr;
    uint32_t count = 0;
  };
  static constexpr size_t kLarge = 8;
  struct Large {
    uint64_t bytes = 0;
    Chunk* chunk = nullptr;
  };

  void* const stream;  // the user's name for it
  Timeline* const timeline;
  std::array<Class, kSizeClasses> small{};
  std::array<Large, kLarge> large{};
  size_t oldest_large = 0;  // the next to evict
};

struct ThreadCache {
  explicit ThreadCache(size_t of_shard) : shard(of_shard) {}

  // The capacity of a thread's cache: blocks of a class, and bytes of all small blocks.
  static constexpr uint32_t Limit(int size_class) {
    const uint64_t of_bytes = (uint64_t{64} << 20) / ClassBytes(size_class);
    return of_bytes > 256 ? 256 : static_cast<uint32_t>(of_bytes);
  }
  static constexpr uint64_t kMostSmallBytes = uint64_t{512} << 20;
  // The capacity once the thread needs a large block: small blocks above it return to the heaps,
  // and may form one.
  static constexpr uint64_t kModestSmallBytes = uint64_t{16} << 20;

  // All of these require the lock, except reads of the counters.
  //
  // The blocks of a stream; null if the stream is new here.
  KeptBlocks* Find(Stream stream) {
    if (latest != nullptr && latest->stream == stream) return latest;
    for (const auto& one : kept) {
      if (one->stream == stream) return latest = one.get();
    }
    return nullptr;
  }
  void Add(Stream stream, Timeline* timeline) {
    if (Find(stream) == nullptr) kept.push_back(std::make_unique<KeptBlocks>(stream, timeline));
  }
  // Requires that it caches no block of the stream.
  void Forget(const Timeline* timeline) {
    latest = nullptr;
    std::erase_if(kept, [timeline](const auto& one) { return one->timeline == timeline; });
  }

  OwnerLock lock;  // the thread's
  std::vector<std::unique_ptr<KeptBlocks>> kept;
  KeptBlocks* latest = nullptr;
  uint64_t kept_small_bytes = 0;
  Counter kept_bytes;
  Counter kept_blocks;
  Counter allocations;  // served from this cache or a shard
  Counter frees;        // into this cache
  const size_t shard;   // the preferred one of the small blocks' shards
};

}  // namespace gpumem::internal
