// What one thread keeps of the blocks that it has freed, by stream: it gets them again at once.
//
// The thread takes and gives under a lock that nobody else takes but for a moment, when memory is
// short and all that threads keep is collected (owner_lock.h). Nothing is called with that lock
// held.
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

// Changed by one thread at a time; any other may look.
class Counter {
 public:
  void Add(uint64_t more) { Set(value() + more); }
  void Subtract(uint64_t less) { Set(value() - less); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  void Set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::atomic<uint64_t> value_{0};
};

// Freed on one stream.
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

  void* const stream;  // as the user names it
  Timeline* const timeline;
  std::array<Class, kSizeClasses> small{};
  std::array<Large, kLarge> large{};
  size_t oldest_large = 0;  // the next to make room
};

struct ThreadCache {
  // Of a class a thread keeps this many at most, and of all so many bytes.
  static constexpr uint32_t Limit(int size_class) {
    const uint64_t of_bytes = (uint64_t{64} << 20) / ClassBytes(size_class);
    return of_bytes > 256 ? 256 : static_cast<uint32_t>(of_bytes);
  }
  static constexpr uint64_t kMostSmallBytes = uint64_t{512} << 20;
  // As long as it needs no large block: where it needs one, small ones above this go back, and may
  // make one.
  static constexpr uint64_t kModestSmallBytes = uint64_t{16} << 20;

  // All of these are under the lock, but for looks at the counters.
  //
  // Those of a stream; null where the stream is new here.
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
  // Of which it keeps nothing.
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
  Counter allocations;  // served from here
  Counter frees;        // that came here
};

}  // namespace gpumem::internal
