// The waiters for one limit, in the order in which they are served, with sums over those before
// each: pure arithmetic, for the ledger's queue (queue.cc).
//
// A waiter that leaves, comes or claims less changes what stands before all those behind it. Here
// that costs a look at some hundred numbers, however many wait, and so does the question who of
// them is not kept out any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/ids.h"

namespace gpumemd {

// By which waiters are served, the higher first: what is left of its guarantee, and its priority.
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
  // What keeps a waiter's verdict at this limit as it is.
  enum class Asleep : uint8_t {
    kNot,     // nothing certain
    kByUse,   // it is kept out while it and those before ask for more than what is left of use …
    kByNeed,  // … or need more than what is left for needs
    kWithRoom,  // it is let in while they ask for no more than there is room
  };
  struct Entry {
    uint64_t asked = 0;
    uint64_t need = 0;
    uint64_t plain_need = 0;  // the same where nothing is reused
    bool claims = false;      // those behind it get nothing of that
    Asleep asleep = Asleep::kNot;
    bool operator==(const Entry&) const = default;
  };
  // What is claimed.
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

  // Puts it there, or changes what is known of it. True if that changes what is claimed.
  bool Set(const QueuePlace& place, const Entry& entry);
  // Takes it out. Nothing: it is not there.
  std::optional<Entry> Take(const QueuePlace& place);
  // Null: it is not there. Until the next change.
  const Entry* Find(const QueuePlace& place) const;
  // What those before the place claim.
  Sums Before(const QueuePlace& place) const;
  // The first behind `after` (or of all) that is asleep, and is not to be with so much left.
  std::optional<QueuePlace> FirstAwake(const std::optional<QueuePlace>& after,
                                       const Left& left) const;
  size_t size() const { return size_; }

 private:
  // Of a few neighbours, or of all: their sums, and the extremes of what one of them and those of
  // them before it ask for or need.
  struct Summary {
    Sums sums;
    uint64_t least_use = UINT64_MAX;
    uint64_t least_need = UINT64_MAX;
    uint64_t most_room = 0;

    void Append(const Summary& next);
    // One of them may be awake, behind those that claim `before`.
    bool MayWake(const Sums& before, const Left& left) const;
  };
  struct Chunk {
    std::vector<std::pair<QueuePlace, Entry>> entries;  // never empty
    Summary summary;
  };
  static Summary Of(const Entry& entry);
  // The chunk that has the place, or would have; the last where it is behind all. There is one.
  size_t ChunkOf(const QueuePlace& place) const;
  void SumUp(Chunk& chunk);

  std::vector<Chunk> chunks_;
  Summary all_;
  size_t size_ = 0;
};

}  // namespace gpumemd
