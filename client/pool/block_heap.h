// SPDX-License-Identifier: Apache-2.0
// Ranges of addresses, cut into chunks, each taken or free. Best fit, with coalescing. It touches
// no memory, calls no driver and takes no lock.
//
// A free chunk is clean, that is, usable on every stream, or it was freed on a stream whose work
// may still use it. In the second case that stream can reuse it at once. Another stream can reuse
// it once the owner's work up to the chunk's epoch is known to come first (stream_order.h).
// Neighbours are joined if they were freed on the same stream, or are both clean.
//
// A small clean piece beside a larger chunk of a stream also becomes that stream's, until its work
// is over: apart, neither would be useful for long.
//
// Invariants, checked by CheckInvariants():
// - chunks do not overlap, and neighbours in addresses link to each other;
// - no two free neighbours are of one stream;
// - every free chunk is in its stream's set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace gpumem::internal {

class Timeline;

// Never returned to the system while its heap lives: a stale pointer reads a chunk, though perhaps
// another one. Aligned to cache lines: threads write into their chunks at once.
struct alignas(64) Chunk {
  uintptr_t at = 0;
  uint64_t bytes = 0;
  Chunk* before = nullptr;  // neighbours in addresses; null: no chunk of the heap adjoins
  Chunk* after = nullptr;
  bool free = false;
  // Of a free chunk: the stream that it was freed on, and the epoch; null: clean. Of a taken chunk:
  // its values before that.
  Timeline* freed_on = nullptr;
  uint64_t epoch = 0;
  // True if a just taken chunk has no pending work.
  bool was_clean() const { return freed_on == nullptr && epoch == 0; }

  Chunk* range = nullptr;  // the argument of AddRange, for all chunks of the range
  // For the owner of a taken chunk; the heap ignores it.
  struct Use {
    bool live = false;        // allocated to the user; else cached by a thread
    uint8_t size_class = 0;   // of small ones (size_class.h)
    bool small = false;       // from the heap of small blocks
    uint8_t shard = 0;        // of a range of small blocks: whose it is (shards/small_shard.h)
    Chunk* next = nullptr;    // in a thread's list
    uint64_t used_bytes = 0;  // of a range of small blocks: bytes in blocks
  } use;
};

class BlockHeap {
 public:
  // `join_ranges`: true if adjacent ranges count as one, so that a chunk may span them.
  explicit BlockHeap(bool join_ranges) : join_ranges_(join_ranges) {}
  BlockHeap(const BlockHeap&) = delete;
  BlockHeap& operator=(const BlockHeap&) = delete;

  // Returns the latest epoch of a stream that the caller may reuse; 0: none, UINT64_MAX: all.
  using Bound = absl::FunctionRef<uint64_t(const Timeline*)>;

  // Adds a range as free memory: of a stream, or clean.
  Chunk* AddRange(uintptr_t at, uint64_t bytes, Timeline* freed_on = nullptr, uint64_t epoch = 0,
                  Chunk* range = nullptr);
  // Returns the clean chunks of at least that many bytes.
  std::vector<Chunk*> CleanChunks(uint64_t least_bytes) const;
  // Removes a range that is part of a free chunk. The part before it remains the same chunk.
  void RemoveRange(Chunk* chunk, uintptr_t at, uint64_t bytes);

  // Takes the smallest chunk that fits, cut to size; null if none does. `bytes` is a multiple of
  // the alignment of addresses. Prefers chunks of `stream` and clean ones.
  Chunk* Take(uint64_t bytes, const Timeline* stream, Bound bound);
  // As Take, from several neighbours together.
  Chunk* Gather(uint64_t bytes, Bound bound);
  // Frees a chunk: the usable part is all that it was cut to. Returns the free chunk that contains
  // it then.
  Chunk* Put(Chunk* chunk, Timeline* freed_on, uint64_t epoch);

  // True if a chunk of the stream or a clean one is hardly larger than `bytes`.
  bool HasCloseFit(uint64_t bytes, const Timeline* stream) const;
  // True if Take, or Gather, would succeed.
  bool HasFit(uint64_t bytes, Bound bound) const;
  bool HasRun(uint64_t bytes, Bound bound) const {
    return HasFit(bytes, bound) || FindRun(bytes, bound) != nullptr;
  }

  // Removes the free run that contains a chunk from the heap, and returns its pieces.
  struct Piece {
    uint64_t bytes = 0;
    Timeline* freed_on = nullptr;
    uint64_t epoch = 0;
  };
  std::vector<Piece> RemoveRun(Chunk* chunk);
  // Frees a taken chunk in these pieces. Returns the bytes of the largest free chunk that contains
  // one of them then.
  uint64_t PutPieces(Chunk* chunk, const std::vector<Piece>& pieces);

  // Marks memory freed on the stream up to that epoch as clean.
  void Clean(Timeline* stream, uint64_t epoch);
  // Returns the streams that free chunks were freed on.
  std::vector<Timeline*> Owners() const;

  // Tails: the last chunk of each run without a gap. Head: the first chunk of the run at that
  // address.
  std::vector<const Chunk*> Tails() const;
  const Chunk* Head(uintptr_t at) const { return firsts_.at(at); }
  Chunk* First(uintptr_t at) { return firsts_.at(at); }

  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t total_bytes() const { return total_bytes_; }
  size_t free_chunks() const { return free_chunks_; }

  // INTERNAL with a message that names the first violated invariant.
  absl::Status CheckInvariants() const;

 private:
  struct BySize {
    uint64_t bytes;
    uintptr_t at;
    Chunk* chunk;
    bool operator<(const BySize& other) const {
      return bytes != other.bytes ? bytes < other.bytes : at < other.at;
    }
  };
  using FreeSet = absl::btree_set<BySize>;

  Chunk* NewChunk();
  void DeleteChunk(Chunk* chunk);
  void AddFree(Chunk* chunk);
  void RemoveFree(Chunk* chunk);
  // Cuts a chunk: the part behind `bytes` becomes a separate chunk of the same state.
  void Split(Chunk* chunk, uint64_t bytes);
  // Merges the next neighbour into the chunk. Neither may be in a set.
  void Join(Chunk* chunk);
  Chunk* Cut(Chunk* chunk, uint64_t bytes);
  // Finds the smallest run of several usable neighbours of sufficient size; returns its first
  // chunk.
  Chunk* FindRun(uint64_t bytes, Bound bound) const;

  // The epoch of a chunk taken from several streams' memory.
  static constexpr uint64_t kOfSeveral = UINT64_MAX;

  const bool join_ranges_;
  std::deque<Chunk> chunks_;
  std::vector<Chunk*> spare_;
  absl::flat_hash_map<const Timeline*, FreeSet> free_;
  // Free chunks whose next neighbour is also free, and of another stream.
  absl::flat_hash_set<Chunk*> seams_;
  // The first and last chunk of each run without a gap, by its start and end address.
  absl::flat_hash_map<uintptr_t, Chunk*> firsts_;
  absl::flat_hash_map<uintptr_t, Chunk*> lasts_;
  uint64_t free_bytes_ = 0;
  uint64_t total_bytes_ = 0;
  size_t free_chunks_ = 0;
};

}  // namespace gpumem::internal
