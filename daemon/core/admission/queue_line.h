// SPDX-License-Identifier: Apache-2.0
// The waiters for one limit, in the order in which they are served, with sums over the waiters
// before each. Pure arithmetic, for the ledger's queue (wait_queue.h).
//
// A waiter that comes, leaves or claims less changes the sums for all waiters behind it. Here that
// costs a look at some hundred numbers, however many wait. So does finding a waiter that is no
// longer kept out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/ids.h"

namespace gpumemd {

// The serving order of waiters, higher first: the unused part of the guarantee, and the priority.
using QueueRank = std::pair<uint64_t, int64_t>;

// A waiter's place in the queue: by rank, then by arrival.
struct QueuePlace {
  QueueRank rank;
  WaiterId id{};
  bool operator==(const QueuePlace&) const = default;
  bool operator<(const QueuePlace& other) const {
    return rank != other.rank ? rank > other.rank : id < other.id;
  }
};

class QueueLine {
 public:
  // Why a waiter's decision at this limit stays as it is.
  enum class Asleep : uint8_t {
    kNot,  // no certain reason
    // Kept out while it and those before it ask for more than Left::use.
    kByUse,
    // Kept out while it and those before it need more than Left::need.
    kByNeed,
    // Let in while it and those before it ask for at most Left::room.
    kWithRoom,
  };
  struct Entry {
    uint64_t asked = 0;
    uint64_t need = 0;
    uint64_t plain_need = 0;  // the same, assuming no reuse
    bool claims = false;      // those behind it get none of that
    Asleep asleep = Asleep::kNot;
    bool operator==(const Entry&) const = default;
  };
  // Sums of claims.
  struct Sums {
    uint64_t asked = 0;
    uint64_t need = 0;
    uint64_t plain_need = 0;
    bool operator==(const Sums&) const = default;
  };
  struct Left {
    uint64_t use = 0;
    uint64_t need = 0;
    uint64_t room = UINT64_MAX;
  };

  // Adds the waiter at this place, or replaces its entry. True if that changes the claims.
  bool Set(const QueuePlace& place, const Entry& entry);
  // Removes and returns the entry, or nothing if there is none.
  std::optional<Entry> Take(const QueuePlace& place);
  // Returns null if there is none. Valid until the next change.
  const Entry* Find(const QueuePlace& place) const;
  // Returns the claims of all waiters before the place.
  Sums Before(const QueuePlace& place) const;
  // Returns the first waiter behind `after` (or of all) that is marked asleep and that `left` no
  // longer keeps asleep.
  std::optional<QueuePlace> FirstAwake(const std::optional<QueuePlace>& after,
                                       const Left& left) const;
  size_t size() const { return size_; }

 private:
  // Sums over a chunk, or over all chunks, and the extremes of what a waiter and those before it in
  // the chunk ask for or need.
  struct Summary {
    Sums sums;
    uint64_t least_use = UINT64_MAX;
    uint64_t least_need = UINT64_MAX;
    uint64_t most_room = 0;

    void Append(const Summary& next);
    // True if one of them may be awake, behind waiters that claim `before`.
    bool MayWake(const Sums& before, const Left& left) const;
  };
  struct Chunk {
    std::vector<std::pair<QueuePlace, Entry>> entries;  // never empty
    Summary summary;
  };
  static Summary Of(const Entry& entry);
  // Returns the chunk that has the place, or would have it; the last one if the place is behind
  // all. Requires a chunk.
  size_t ChunkOf(const QueuePlace& place) const;
  void SumUp(Chunk& chunk);

  std::vector<Chunk> chunks_;
  Summary all_;
  size_t size_ = 0;
};

}  // namespace gpumemd
