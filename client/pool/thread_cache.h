// What one thread keeps of the blocks that it has freed, by stream: it gets them again at once.
//
// The thread takes and gives under a lock that nobody else holds but for a moment, when memory
// is short and all that threads keep is collected. Nothing is called with that lock held.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "client/pool/block_heap.h"
#include "client/pool/size_class.h"
#include "client/pool/stream_api.h"
#include "client/pool/stream_order.h"

namespace gpumem::internal {

class SpinLock {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
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
    const uint64_t of_bytes = (uint64_t{8} << 20) / ClassBytes(size_class);
    return of_bytes > 64 ? 64 : static_cast<uint32_t>(of_bytes);
  }
  static constexpr uint64_t kMostSmallBytes = uint64_t{64} << 20;

  // All of these under the lock.
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

  SpinLock lock;
  std::vector<std::unique_ptr<KeptBlocks>> kept;
  KeptBlocks* latest = nullptr;
  uint64_t kept_bytes = 0;
  uint64_t kept_small_bytes = 0;
  uint64_t kept_blocks = 0;
  uint64_t allocations = 0;  // served from here
  uint64_t frees = 0;        // that came here
};

}  // namespace gpumem::internal
