// SPDX-License-Identifier: Apache-2.0
// Memory of one device that the process has reserved and not yet handed to allocations, so that
// small allocations cost no call to the daemon.
#pragma once

#include <stdint.h>

#include <atomic>

#include "client/preload/lock.h"

namespace gpumem::preload {

// The answers of the daemon's side; those of accountant.h.
enum class Answer { kOk = 0, kNoMemory = 1, kGone = 2, kUnlimited = 3 };

// Where reservations come from. Functions of C, with `self` as their first argument.
struct CreditSource {
  Answer (*acquire)(void* self, uint64_t bytes, bool may_wait, uint64_t* id);
  void (*release)(void* self, uint64_t id);
  void* self;
};

// Thread-safe. Requests below the size of a chunk share reservations of that size; which one does
// not matter, so there is one number, the credit. Larger requests get a reservation each. If it is
// of two chunks at most, the last of these that was given back is kept for a request of the same
// size. So a program that allocates and frees such blocks in turn asks for one once.
//
// The process never holds less at the source than it has handed out, with one exception: Owe().
class Credit {
 public:
  static constexpr uint64_t kDefaultChunk = uint64_t{32} << 20;
  // In chunks: a larger amount is reserved in parts, so that most of it can go back by itself.
  static constexpr uint64_t kLargestChunk = 16;
  static constexpr uint64_t kLargePage = uint64_t{2} << 20;
  static constexpr uint64_t kUnit = 512;

  constexpr Credit() = default;

  // Requires that no other function is called before or at the same time.
  void Init(const CreditSource& source, uint64_t chunk) {
    source_ = source;
    chunk_ = chunk;
  }

  // Hands `bytes` out. `*id` is 0 if they are from the shared credit, else a reservation of their
  // own. Refuses only if the source refuses what the credit lacks, to the unit of 512 bytes.
  Answer Take(uint64_t bytes, uint64_t* id);

  // As Take(), from the shared credit whatever the size: for amounts that change later.
  Answer TakeShared(uint64_t bytes);

  // As TakeShared(), after that has refused: asks for just what the credit lacks, and the source
  // may let it wait. No lock is held meanwhile, and what others give back goes to the source at
  // once.
  Answer TakeWaiting(uint64_t bytes);

  // Takes back what Take() handed out, with the same arguments.
  void Give(uint64_t bytes, uint64_t id);

  // Takes back a part of what TakeShared() handed out.
  void GiveShared(uint64_t bytes);

  // Hands out what the driver has taken already, unasked. If the source refuses, the credit is
  // negative, and nothing more is handed out until the source has granted the difference.
  void Owe(uint64_t bytes);

  // Gives all reservations back that are not needed for bytes handed out.
  void Trim();

  // Returns what can be handed out without asking the source; negative after Owe().
  int64_t available() const { return available_.load(std::memory_order_relaxed); }

  // Returns the bytes of the reservation that is kept for the next large request.
  uint64_t spare_bytes();

  // Returns the bytes of the reservations that the shared credit consists of.
  uint64_t shared_bytes();

  // Forgets all without releasing it: in a child after fork(), as it belongs to the parent.
  void Abandon();

 private:
  struct Chunk {
    uint64_t id;
    uint64_t bytes;
  };

  // Takes the spare reservation if it has exactly this size.
  bool TakeSpare(uint64_t bytes, uint64_t* id);
  // Keeps a reservation as the spare one, and gives the earlier one back.
  void KeepSpare(const Chunk& chunk);
  // Gives the spare reservation back; false if there is none.
  bool DropSpare();
  // Asks the source, and once more without the spare reservation.
  Answer Ask(uint64_t bytes, uint64_t* id);
  // Takes from the credit, and from `fresh` bytes that are not part of it yet; the rest of these
  // becomes a part.
  bool TakeFast(uint64_t bytes, uint64_t fresh = 0);
  Answer TakeSlow(uint64_t bytes);
  // Requires mutex_.
  Answer AcquireChunk(uint64_t bytes);
  // Requires mutex_. Gives the chunk back if there is no memory for it.
  bool AddChunk(const Chunk& chunk);
  // Requires mutex_. Gives chunks back until at most `keep` are available, or none fits.
  void Shrink(int64_t keep);
  // Requires mutex_. Replaces a chunk by a smaller one, if none is small enough to be given back.
  void Exchange(int64_t keep);

  CreditSource source_ = {};
  uint64_t chunk_ = kDefaultChunk;
  std::atomic<int64_t> available_{0};
  std::atomic<int> waiting_{0};  // threads that are in TakeWaiting()
  Mutex mutex_;
  Mutex spare_mutex_;
  Chunk spare_ = {0, 0};
  Chunk* chunks_ = nullptr;
  size_t count_ = 0;
  size_t capacity_ = 0;
};

}  // namespace gpumem::preload
