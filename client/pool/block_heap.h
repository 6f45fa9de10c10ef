// Runs of addresses, cut into chunks: which are taken, which are free, and for whom. Best fit,
// with coalescing. It touches no memory, calls no driver and takes no lock.
//
// A free chunk is everybody's, or it was freed on a stream whose work may still use it: then it is
// that stream's at once, and another's from the moment that the stream's work up to the chunk's
// epoch is known to come first (stream_order.h). Neighbours are joined where they were freed on the
// same stream, or are both everybody's.
//
// A small piece of everybody's beside a larger one of a stream becomes that stream's, too, until
// its work is over: apart, neither would be of use for long.
//
// Invariants, checked by CheckInvariants(): chunks do not overlap; neighbours in addresses know
// each other; no two free neighbours are of one stream; every free chunk is in its stream's set.
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

// Never returned to the system while its heap lives: a stale pointer to one reads a chunk, though
// not the one that it was.
// On cache lines of its own: threads write into theirs at once.
struct alignas(64) Chunk {
  uintptr_t at = 0;
  uint64_t bytes = 0;
  Chunk* before = nullptr;  // the neighbours in addresses; null: nothing of the heap lies there
  Chunk* after = nullptr;
  bool free = false;
  // Of a free chunk: the stream that it was freed on, and when; null: everybody's. Of a taken one:
  // what it was before.
  Timeline* freed_on = nullptr;
  uint64_t epoch = 0;
  // Of one that was just taken: whether no work at all may still use it.
  bool was_clean() const { return freed_on == nullptr && epoch == 0; }

  Chunk* range = nullptr;  // what AddRange was told, for all that is cut out of the range
  // For whoever has taken it; the heap does not look.
  struct Use {
    bool live = false;        // handed out to the user; else kept by a thread
    uint8_t size_class = 0;   // of small ones (size_class.h)
    bool small = false;       // from the heap of small ones
    Chunk* next = nullptr;    // in a thread's list
    uint64_t used_bytes = 0;  // of one that is a range of small ones: in blocks
  } use;
};

class BlockHeap {
 public:
  // `join_ranges`: whether ranges that touch count as one, so that a chunk may span them.
  explicit BlockHeap(bool join_ranges) : join_ranges_(join_ranges) {}
  BlockHeap(const BlockHeap&) = delete;
  BlockHeap& operator=(const BlockHeap&) = delete;

  // The latest epoch of that stream's that the one who asks may reuse; 0: none, UINT64_MAX: all.
  using Bound = absl::FunctionRef<uint64_t(const Timeline*)>;

  // New memory, all of it free; of a stream, or everybody's.
  Chunk* AddRange(uintptr_t at, uint64_t bytes, Timeline* freed_on = nullptr, uint64_t epoch = 0,
                  Chunk* range = nullptr);
  // The chunks of so many bytes at least that are free for everybody.
  std::vector<Chunk*> CleanChunks(uint64_t least_bytes) const;
  // Takes a range that is part of a free chunk out of the heap. What is before it in the chunk
  // stays that chunk.
  void RemoveRange(Chunk* chunk, uintptr_t at, uint64_t bytes);

  // The smallest chunk that fits, cut to size; null where none does. `bytes` is a multiple of
  // what addresses are to be aligned to. That of the stream itself and everybody's come first.
  Chunk* Take(uint64_t bytes, const Timeline* stream, Bound bound);
  // The same from several neighbours together.
  Chunk* Gather(uint64_t bytes, Bound bound);
  // What may be used is all that it was cut to. Returns the free chunk that it is part of then.
  Chunk* Put(Chunk* chunk, Timeline* freed_on, uint64_t epoch);

  // Whether the stream's own or everybody's has one that is hardly larger.
  bool HasCloseFit(uint64_t bytes, const Timeline* stream) const;
  // Whether Take, or Gather, would find something.
  bool HasFit(uint64_t bytes, Bound bound) const;
  bool HasRun(uint64_t bytes, Bound bound) const {
    return HasFit(bytes, bound) || FindRun(bytes, bound) != nullptr;
  }

  // Takes the whole run that a chunk is part of, all of it free, out of the heap; what it was.
  struct Piece {
    uint64_t bytes = 0;
    Timeline* freed_on = nullptr;
    uint64_t epoch = 0;
  };
  std::vector<Piece> RemoveRun(Chunk* chunk);
  // Puts a taken chunk back in such pieces; the bytes of the largest free chunk that they are part
  // of then.
  uint64_t PutPieces(Chunk* chunk, const std::vector<Piece>& pieces);

  // What was freed on the stream up to that epoch is everybody's from here on.
  void Clean(Timeline* stream, uint64_t epoch);
  // The streams that free chunks were freed on.
  std::vector<Timeline*> Owners() const;

  // The last chunk of each run without a gap; and the first of the one that begins there.
  std::vector<const Chunk*> Tails() const;
  const Chunk* Head(uintptr_t at) const { return firsts_.at(at); }

  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t total_bytes() const { return total_bytes_; }
  size_t free_chunks() const { return free_chunks_; }

  // INTERNAL with a sentence naming the first violated invariant.
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
  // Cuts it: what is behind `bytes` becomes a chunk of its own, of the same state.
  void Split(Chunk* chunk, uint64_t bytes);
  // Takes the neighbour behind it into it. Neither may be in a set.
  void Join(Chunk* chunk);
  Chunk* Cut(Chunk* chunk, uint64_t bytes);
  // Where the smallest run of several neighbours begins that may be used and are enough together.
  Chunk* FindRun(uint64_t bytes, Bound bound) const;

  // The epoch of what was taken of several streams' memory together.
  static constexpr uint64_t kOfSeveral = UINT64_MAX;

  const bool join_ranges_;
  std::deque<Chunk> chunks_;
  std::vector<Chunk*> spare_;
  absl::flat_hash_map<const Timeline*, FreeSet> free_;
  // Free chunks whose neighbour behind is free, too, and of another stream.
  absl::flat_hash_set<Chunk*> seams_;
  // The first and last chunk of each run without a gap, by where it begins and ends.
  absl::flat_hash_map<uintptr_t, Chunk*> firsts_;
  absl::flat_hash_map<uintptr_t, Chunk*> lasts_;
  uint64_t free_bytes_ = 0;
  uint64_t total_bytes_ = 0;
  size_t free_chunks_ = 0;
};

}  // namespace gpumem::internal
