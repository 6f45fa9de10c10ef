// The pool behind its public face: what gpumem/pool.h promises, over a source of segments and the
// driver's streams, both of which tests replace.
//
// Three layers. Threads keep what they have freed (thread_cache.h) and serve themselves from
// that. What they lack they get under one lock from two heaps (block_heap.h): one of large blocks,
// in the leased segments, and one of small blocks, in ranges that are large blocks themselves, so
// that small ones do not lie scattered between large ones. What the heaps lack is leased
// (engine_growth.cc), or comes from where it is of no use (engine_moves.cc), without the lock.
// Where nobody has any, it is waited for (engine_waiting.cc), in the daemon's queue and here at
// once.
//
// Memory that was freed on another stream is had in this order, which is that of CUDA's pools:
// where that stream's work is known to come first; where it is seen to be done; by growing; and
// only then by making the GPU wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/pool/block_heap.h"
#include "client/pool/block_ticket.h"
#include "client/pool/pointer_table.h"
#include "client/pool/segment_source.h"
#include "client/pool/stream_api.h"
#include "client/pool/stream_order.h"
#include "client/pool/thread_cache.h"
#include "client/session/interrupt.h"
#include "gpumem/pool.h"

namespace gpumem::internal {

class Engine {
 public:
  Engine(std::unique_ptr<SegmentSource> source, std::unique_ptr<StreamApi> api,
         const PoolOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // All of these as gpumem/pool.h says.
  absl::StatusOr<Block> Allocate(uint64_t bytes, Stream stream);
  Block TryAllocate(uint64_t bytes, Stream stream);
  absl::StatusOr<Block> AllocateSynchronized(uint64_t bytes);
  absl::Status Free(void* data, Stream stream);
  bool TryFree(void* data, Stream stream);
  absl::Status FreeSynchronized(void* data);
  absl::StatusOr<Block> Find(void* data);
  absl::StatusOr<BlockTicket> Share(void* data);
  absl::Status StreamWaits(Stream waiting, Stream awaited);
  absl::Status ForgetStream(Stream stream);
  absl::StatusOr<uint64_t> Trim(uint64_t keep_bytes);
  // So many bytes, if that is free; otherwise as much as is. In whole segments. Nothing once the
  // deadline has passed.
  void GiveBack(uint64_t bytes, absl::Time deadline = absl::InfiniteFuture());
  // Waits for the streams' work and gives back all that is free then. From here on, until
  // SetReleaseThreshold(), nothing that is free is kept.
  void GiveAll();
  // Whether it has any of these segments, by SegmentSource::Range::id.
  bool HasAny(absl::Span<const uint64_t> ids) const;
  // nullopt: of all streams.
  absl::StatusOr<uint64_t> FreeAllBlocks(std::optional<Stream> stream);
  absl::Status SetLimit(uint64_t bytes);
  absl::StatusOr<uint64_t> TotalBytes();  // that the tenant may have on the device
  uint64_t limit() const;
  void SetReleaseThreshold(uint64_t bytes);
  void SetReusePolicy(const ReusePolicy& policy);
  PoolStats Stats() const;
  void ResetPeaks();
  absl::StatusOr<MemInfo> MemGetInfo();
  void SetHook(std::function<void(const PoolEvent&)> hook);
  void SetOutOfMemoryCallback(std::function<bool(uint64_t bytes)> callback);

  // FAILED_PRECONDITION in a child after fork().
  absl::Status CheckProcess() const;
  // For tests: INTERNAL with a sentence naming what is wrong.
  absl::Status CheckInvariants() const;

 private:
  struct Segment {
    uint64_t id = 0;
    uint64_t bytes = 0;
  };
  // Addresses that nobody uses: with free memory, or with none.
  struct Stretch {
    uintptr_t at = 0;
    uint64_t bytes = 0;
    bool hole = false;
  };
  struct Hole {
    uintptr_t at = 0;
    uint64_t bytes = 0;
  };
  // Addresses for a block, and what they lack of memory.
  struct Place {
    uintptr_t at = 0;
    uint64_t bytes = 0;
    std::vector<Hole> holes;  // by address; none: it is not known where
    uint64_t missing = 0;     // in all of them
    uint64_t room = 0;        // that the last of them has behind it
  };
  using Hook = std::function<void(const PoolEvent&)>;

  bool IsOwnProcess() const;
  Stream Named(Stream stream) const;
  // Nobody can capture the legacy stream.
  bool IsFree(Stream stream) const { return stream == LegacyStream() || api_->IsFree(stream); }
  absl::Status ExplainCapture(Stream stream) const;
  // Of a stream that is not being captured.
  absl::StatusOr<Timeline*> Known(Stream stream) ABSL_LOCKS_EXCLUDED(mutex_);

  // --- What threads keep (engine.cc) -----------------------------------------------
  // Freed on one stream, and on its way back to the heaps.
  struct Kept {
    Timeline* timeline = nullptr;
    std::vector<Chunk*> chunks;
  };
  bool Caching() const {
    return caching_.load(std::memory_order_relaxed) &&
           waiting_.load(std::memory_order_relaxed) == 0;
  }
  // Free without a cache; `done`: no work on it is left.
  absl::Status FreeUncached(uintptr_t at, Stream stream, bool done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Null: this thread keeps nothing; of the second, too, where it has not begun to. That one takes
  // no lock.
  ThreadCache* CacheOfThisThread();
  ThreadCache* KnownCacheOfThisThread() const;
  // Null `data`: it keeps none that fits.
  static Block AllocateFromCache(ThreadCache* cache, uint64_t bytes, Stream stream);
  bool HasRoom(const ThreadCache& cache, const KeptBlocks& kept, const Chunk& chunk) const;
  static Block TakeKept(ThreadCache& cache, KeptBlocks& kept, uint64_t bytes);
  // Puts it into the cache; moves to `spilled` what no longer fits.
  void Keep(ThreadCache& cache, KeptBlocks& kept, Chunk* chunk, std::vector<Chunk*>& spilled);
  // These leave the cache and are in nobody's books until they are put back. Under its lock.
  void CountOut(ThreadCache& cache, absl::Span<Chunk* const> chunks);
  // All that it keeps of one stream or, where that is null, of all leaves it. Under its lock.
  void TakeKeptOf(ThreadCache& cache, const Timeline* timeline, std::vector<Kept>& out);
  // Back into the heaps: what this thread keeps; of that what lies beside large blocks of the
  // stream; what all threads keep of one stream or, where that is null, of all. `forget`: the
  // stream is none of theirs any more.
  void CollectOwn() ABSL_LOCKS_EXCLUDED(mutex_);
  void CollectOwnLarge(Stream stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void CollectKept(const Timeline* timeline, bool forget) ABSL_LOCKS_EXCLUDED(mutex_);
  // All of a thread that ends.
  void TakeOver(ThreadCache& cache) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<ThreadCache>> Caches() const ABSL_LOCKS_EXCLUDED(caches_mutex_);
  uint64_t KeptBytes() const;

  // --- The heaps (engine_heaps.cc) -------------------------------------------------
  absl::StatusOr<Block> AllocateFromHeaps(uint64_t bytes, Stream stream)
      ABSL_LOCKS_EXCLUDED(mutex_);
  Block HandOut(Chunk* chunk, uint64_t bytes, Stream stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `shrinks`: what is above the release threshold goes; not where it is about to be used.
  void PutBack(const std::vector<Kept>& all, bool shrinks) ABSL_LOCKS_EXCLUDED(mutex_);
  void PutBack(absl::Span<Chunk* const> chunks, Timeline* timeline, bool shrinks)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // How large the free large chunk is that it is part of then.
  uint64_t PutChunk(Chunk* chunk, Timeline* timeline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null: there is none without growing.
  Chunk* TakeFor(uint64_t bytes, Timeline* timeline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Chunk* TakeFrom(BlockHeap& heap, uint64_t bytes, Timeline* timeline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The latest epoch of `of` that `by` may reuse by what is known, as far as the policy says.
  uint64_t Followed(const Timeline* by, const Timeline* of) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Chunk* TakeByWaiting(uint64_t bytes, Timeline* timeline, bool coupled_only)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddSmallRange(Chunk* host, Timeline* timeline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes everybody's what is seen to be done; of which streams.
  enum class Polled {
    kNothing,
    kMost,  // those that no other stream waits for an event of
    kAll,
  };
  void PollAll(const Timeline* but, Polled polled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For the work of the streams that have freed what is free, or of one. Answers what kept it from
  // one, and waits for the others.
  absl::Status WaitForOwners(Timeline* only) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Timeline*> Owners() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Growing and shrinking (engine_growth.cc) ------------------------------------
  absl::Status Grow(uint64_t bytes, const Timeline* timeline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the place lacks; or where it is not known, so many bytes anywhere.
  absl::Status LeaseFor(const Place& place, uint64_t bytes, bool wish)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // So many, or somewhat more, up to `most`. Lets go of the lock for the daemon's time.
  absl::Status Lease(uint64_t bytes, uint64_t most, uintptr_t at, bool wish)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Leased by now.
  void Adopt(absl::Span<const SegmentSource::Range> ranges) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How large segments are, where they can be: the more there are, the larger.
  uint64_t SegmentBytes(uint64_t wanted) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Those that are free for everybody, with the chunk that each is part of. From the highest
  // address down, so that what stays is in one piece when they go in this order, and what a chunk
  // has before them stays that chunk.
  std::vector<std::pair<uintptr_t, Chunk*>> FreeSegments() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes whole free segments out of the heaps as long as at least so many bytes stay reserved that
  // are not used, until they are enough; what to release.
  std::vector<Segment> Shrink(uint64_t keep_bytes, uint64_t enough_bytes = UINT64_MAX,
                              Polled polled = Polled::kAll) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How many bytes went.
  uint64_t GiveFree(uint64_t bytes, Polled polled) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<uint64_t> ReleaseAll(const std::vector<Segment>& segments)
      ABSL_LOCKS_EXCLUDED(mutex_);

  void SetThreshold(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // --- Waiting (engine_waiting.cc) -------------------------------------------------
  struct Wanted {
    uint64_t bytes = 0;
    uint64_t rounded = 0;
    Stream stream = nullptr;
    Timeline* timeline = nullptr;
  };
  // Null `data`: not served, but perhaps it is worth another try, or the deadline has passed. Lets
  // go of the lock.
  Block Await(const Wanted& wanted, const absl::Status& refusal, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In the daemon's queue, until something that was freed here serves as well.
  Block AwaitDaemon(const Wanted& wanted, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What one lease would have to bring; no bytes: that is not known, or more than the limit leaves.
  Hole Missing(const Wanted& wanted) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of what is free here.
  Block TryAgain(const Wanted& wanted) ABSL_LOCKS_EXCLUDED(mutex_);
  Block TakeOrNone(const Wanted& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Moving (engine_moves.cc) ----------------------------------------------------
  // Where nothing is used, by address: free memory that the stream may use and holes, one behind
  // the other.
  std::vector<std::vector<Stretch>> Vacancies(const Timeline* timeline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // At the lower end of it, or at the upper; of fewer bytes where it has not so many.
  static Place PlaceIn(absl::Span<const Stretch> vacancy, uint64_t bytes, uint64_t unit,
                       bool upwards);
  // The one that lacks least.
  Place FindPlace(uint64_t bytes, const Timeline* timeline, uint64_t unit) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For one hole.
  struct Moving {
    uintptr_t to = 0;  // 0: they were not moved
    uint64_t bytes = 0;
    std::vector<std::pair<uintptr_t, Segment>> segments;  // with where they come from
  };
  // Takes whole segments out of the heap that are free for everybody, as many as the holes take.
  std::vector<Moving> TakeForMoving(const Place& place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves what there is into the holes; the place is what is left of it. Lets go of the lock for
  // the driver's time.
  void FillPlace(Place& place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Tell(PoolEvent::What what, uintptr_t at, uint64_t bytes, Stream stream);

  const std::unique_ptr<SegmentSource> source_;
  const std::unique_ptr<StreamApi> api_;
  const PoolOptions options_;
  const uint64_t id_;          // of this pool in the process: never given twice
  const uint64_t generation_;  // of the process: changes in a forked child
  std::atomic<bool> caching_{true};
  std::atomic<bool> releases_{false};  // there is a threshold: no thread keeps large blocks
  std::atomic<int> waiting_{0};        // threads that wait for memory
  // Chunks that are in no cache any more and in no heap yet.
  std::atomic<uint64_t> moving_{0};

  mutable absl::Mutex mutex_;
  BlockHeap large_ ABSL_GUARDED_BY(mutex_){/*join_ranges=*/source_->places()};
  BlockHeap small_ ABSL_GUARDED_BY(mutex_){/*join_ranges=*/false};
  StreamOrder order_ ABSL_GUARDED_BY(mutex_){api_.get()};
  uint64_t range_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of large_'s chunks that are small_'s ranges
  absl::btree_map<uintptr_t, Segment> segments_ ABSL_GUARDED_BY(mutex_);  // by address
  ReusePolicy policy_ ABSL_GUARDED_BY(mutex_);
  uint64_t limit_ ABSL_GUARDED_BY(mutex_);
  uint64_t release_threshold_ ABSL_GUARDED_BY(mutex_);
  uint64_t taken_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // out of the heaps, kept by threads or used
  uint64_t reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // The most that was used at once, with what was just asked for, when that was missing.
  uint64_t needed_peak_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time disturbed_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // when, by GiveBack
  bool growing_ ABSL_GUARDED_BY(mutex_) = false;       // or moving; by one thread at a time
  uint64_t moving_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // in segments that are in no heap meanwhile
  uint64_t returns_ ABSL_GUARDED_BY(mutex_) = 0;  // times that something came back to the heaps
  // Of those who wait in the daemon's queue: nudged when something came back.
  std::vector<std::shared_ptr<Interrupt>> awaiting_ ABSL_GUARDED_BY(mutex_);
  PoolStats counts_ ABSL_GUARDED_BY(mutex_);  // the counters and marks of it
  std::function<bool(uint64_t)> out_of_memory_ ABSL_GUARDED_BY(mutex_);

  // Written under the lock; read without it by whoever holds the lock of a thread cache, all of
  // which are visited once before an old table goes.
  PointerTable table_;

  mutable absl::Mutex caches_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  std::vector<std::shared_ptr<ThreadCache>> caches_ ABSL_GUARDED_BY(caches_mutex_);

  mutable absl::Mutex hook_mutex_;
  std::shared_ptr<const Hook> hook_ ABSL_GUARDED_BY(hook_mutex_);
  std::atomic<bool> hooked_{false};

  // What the caches of threads that end know of this pool.
  struct Link {
    absl::Mutex mutex;
    Engine* engine ABSL_GUARDED_BY(mutex) = nullptr;
  };
  const std::shared_ptr<Link> link_;
  friend struct ThreadCaches;
};

}  // namespace gpumem::internal
