// SPDX-License-Identifier: Apache-2.0
// The known order of streams' work: decides when memory freed on one stream may be used on another.
//
// Each stream has a Timeline, which counts epochs. Memory freed on a stream belongs to its current
// epoch. Recording an event ends the epoch. When the event has completed, all work is done that
// used memory freed in that epoch or before. Events are recorded only when another stream asks for
// such memory. A stream that waits for another's event knows that stream's epochs up to it, and
// what that stream knew of others.
//
// Not thread-safe, except for what reads or writes a timeline's atomic numbers.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool/stream_api.h"

namespace gpumem::internal {

class Timeline {
 public:
  Stream stream() const { return stream_; }
  // The epoch of memory freed now. Any thread may call it after it has submitted the work.
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  // The latest epoch of memory that is still free.
  void NoteFreed(uint64_t epoch) {
    uint64_t latest = latest_freed_.load(std::memory_order_relaxed);
    while (latest < epoch && !latest_freed_.compare_exchange_weak(latest, epoch)) {
    }
  }
  // Maintained by the engine: the epoch up to which freed memory has become clean.
  uint64_t cleaned = 0;

 private:
  friend class StreamOrder;
  Stream stream_ = nullptr;
  uint64_t thread_ = 0;  // the owner of a per-thread default stream (ThreadNumber)
  bool blocking_ = true;
  bool forgotten_ = false;
  std::atomic<uint64_t> epoch_{1};
  std::atomic<uint64_t> latest_freed_{0};
  std::atomic<uint64_t> done_{0};  // the work of all epochs up to it is done
  struct Recorded {
    uint64_t epoch;
    StreamApi::EventHandle event;
  };
  std::deque<Recorded> recorded_;  // not yet seen to have completed, oldest first
  // For other streams: the epoch up to which they come before future work of this stream.
  absl::flat_hash_map<const Timeline*, uint64_t> known_;
};

class StreamOrder {
 public:
  // `api` outlives it.
  explicit StreamOrder(StreamApi* api) : api_(api) {}
  // Does not wait.
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Returns the stream's timeline, which lives as long as this. Null and the legacy stream share
  // one. The per-thread stream's belongs to the calling thread. AnyStream() has one, which only
  // takes memory without pending work; no memory is freed on it.
  //   INVALID_ARGUMENT  as StreamApi::IsBlocking
  absl::StatusOr<Timeline*> Get(Stream stream);
  // Returns the timeline of a stream that Get() was called for, or null. Calls no driver.
  Timeline* Find(Stream stream) const;

  // Returns the latest epoch of `of` that may be reused on `by` without waiting.
  uint64_t Bound(const Timeline* by, const Timeline* of) const;

  // Returns the latest epoch that was seen to be done. Any thread may call it.
  static uint64_t Done(const Timeline* of) { return of->done_.load(std::memory_order_acquire); }
  // Polls which epochs of `of` are done. If no event is outstanding and none covers the freed
  // memory, records one. Returns the latest epoch that is done.
  uint64_t Poll(Timeline* of);
  // True if an event of it makes all blocking streams wait for each other: it goes to the legacy
  // stream.
  static bool IsBarrier(const Timeline* of);

  // Makes `by` wait on the GPU for all work submitted to `of`. Returns the epoch of `of` that it
  // knows then.
  //   FAILED_PRECONDITION  `by` is AnyStream()'s; or as StreamApi::Record and Wait
  absl::StatusOr<uint64_t> MakeWait(Timeline* by, Timeline* of);
  // True if the two wait for each other anyway, since one is the legacy default stream.
  static bool Coupled(const Timeline* one, const Timeline* other);

  // Records that the user has made `by` wait for all work submitted to `of`.
  void Waits(Timeline* by, Timeline* of);

  // Returns an event after all work submitted to `of`, to wait for without the lock that guards
  // this; nullopt if that work is done. It may be recorded anew meanwhile, and then completes
  // later.
  absl::StatusOr<std::optional<StreamApi::EventHandle>> LastEvent(Timeline* of);

  // Marks its handle as reusable for another stream. Memory freed on it is clean when an event
  // recorded now has completed.
  absl::Status Forget(Timeline* timeline);

 private:
  //   FAILED_PRECONDITION  the stream is being captured
  absl::StatusOr<Timeline::Recorded> Record(Timeline* of);
  void Settle(Timeline* of);

  StreamApi* const api_;
  std::vector<std::unique_ptr<Timeline>> timelines_;
  absl::flat_hash_map<std::pair<Stream, uint64_t>, Timeline*> by_stream_;  // and thread
};

}  // namespace gpumem::internal
