// What is known of the order of streams' work: when may memory that was freed on one stream be
// used on another?
//
// Each stream has a Timeline, which counts epochs. What is freed on a stream belongs to its
// current epoch. An event that is recorded ends the epoch, and when it has happened all work is
// over that used what was freed in that epoch or before. Events are recorded only when another
// stream asks for such memory. A stream that waits for another's event knows its epochs up to
// there, and what that one knew of others.
//
// Not thread-safe, but for Timeline::epoch().
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
  // That what is freed now belongs to. Any thread may ask, after it has submitted the work.
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  // Kept by the engine: the latest epoch in which something was freed that is free still, and up to
  // which what was freed has become everybody's.
  uint64_t latest_freed = 0;
  uint64_t cleaned = 0;

 private:
  friend class StreamOrder;
  Stream stream_ = nullptr;
  uint64_t thread_ = 0;  // whose it is, of a per-thread default stream (ThreadNumber)
  bool blocking_ = true;
  bool forgotten_ = false;
  std::atomic<uint64_t> epoch_{1};
  uint64_t done_ = 0;  // all epochs up to it are over
  struct Recorded {
    uint64_t epoch;
    StreamApi::EventHandle event;
  };
  std::deque<Recorded> recorded_;  // not yet seen to have happened, oldest first
  // Of other streams: up to which epoch they come before what is submitted here from now on.
  absl::flat_hash_map<const Timeline*, uint64_t> known_;
};

class StreamOrder {
 public:
  // `api` outlives it.
  explicit StreamOrder(StreamApi* api) : api_(api) {}
  // Waits for nothing.
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // The stream's, which lives as long as this. Null and the legacy stream are one; the per-thread
  // stream is the calling thread's.
  // AnyStream() has one, too, which has only what is nobody's, and nothing is freed on it.
  //   INVALID_ARGUMENT  as StreamApi::IsBlocking
  absl::StatusOr<Timeline*> Get(Stream stream);

  // The latest epoch of `of` that may be reused on `by` without another word.
  uint64_t Bound(const Timeline* by, const Timeline* of) const;

  // The latest epoch of which it was seen that it is over.
  static uint64_t Done(const Timeline* of) { return of->done_; }
  // Finds out which of the epochs of `of` are over by now; where no event is outstanding, records
  // one that covers what was freed, if none has. Answers the latest epoch that is over.
  uint64_t Poll(Timeline* of);
  // Whether an event of it has all blocking streams wait for each other: it goes to the legacy
  // stream.
  static bool IsBarrier(const Timeline* of);

  // Makes `by` wait for all that was submitted to `of`, by the GPU; answers the epoch up to
  // which it knows it then.
  //   FAILED_PRECONDITION  `by` is AnyStream()'s; or as StreamApi::Record and Wait
  absl::StatusOr<uint64_t> MakeWait(Timeline* by, Timeline* of);
  // Whether the two wait for each other anyway, since one is the legacy default stream.
  static bool Coupled(const Timeline* one, const Timeline* other);

  // The user has made `by` wait for all that was submitted to `of`.
  void Waits(Timeline* by, Timeline* of);

  // An event after all that was submitted to `of`, to be waited for without the lock that guards
  // this; nullopt where that is over. It may be recorded anew meanwhile, and then happens later.
  absl::StatusOr<std::optional<StreamApi::EventHandle>> LastEvent(Timeline* of);

  // Its handle means another stream from here on. What was freed on it is over when an event that
  // is recorded now has happened.
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
