// SPDX-License-Identifier: Apache-2.0
// The implementation of gpumem/pool.h over segments and streams, which tests replace.
//
// Three layers:
// - Threads cache the blocks that they freed (thread_cache.h) and allocate from that cache.
// - On a miss they use two heaps (block_heap.h). One holds large blocks, in the leased segments.
//   The other holds small blocks, in ranges that are large blocks, which keeps them out of the
//   space of large ones. It is in shards, each with a lock (shards/small_shard.h). The engine's
//   lock guards the rest, and is acquired before a shard's.
// - Memory that the heaps lack is leased (engine_growth.cc) or moved from useless places
//   (engine_moves.cc), without the lock. If there is none, the engine waits (engine_allocation.cc).
// A suspension (engine_suspension.cc) moves the segments and leaves all bookkeeping as it is.
// Memory freed on another stream is reused in the order of CUDA's pools: if its work is known to
// come first; if it is done by now; then the pool grows; last, the GPU waits.
#pragma once

#include <array>
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
#include "client/pool/growth/forecast.h"
#include "client/pool/growth/spare.h"
#include "client/pool/segment_source.h"
#include "client/pool/shards/pointer_tables.h"
#include "client/pool/shards/small_shard.h"
#include "client/pool/shards/taken_bytes.h"
#include "client/pool/shards/thread_counter.h"
#include "client/pool/sharing/block_ticket.h"
#include "client/pool/stream_api.h"
#include "client/pool/stream_order.h"
#include "client/pool/thread_cache.h"
#include "client/session/interrupt.h"
#include "gpumem/pool.h"
#include "gpumem/suspend.h"

namespace gpumem::internal {

class Engine {
 public:
  Engine(std::unique_ptr<SegmentSource> source, std::unique_ptr<StreamApi> api,
         const PoolOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  // As documented in gpumem/pool.h.
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
  // Gives back that many free bytes, or as many as are free, in whole segments. Does nothing once
  // the deadline has passed.
  void GiveBack(uint64_t bytes, absl::Time deadline = absl::InfiniteFuture());
  absl::Status Suspend(const SuspendOptions& options);
  absl::Status Resume(const ResumeOptions& options);
  bool suspended() const;
  // Blocks until the streams' work is done and gives back all free memory. Until
  // SetReleaseThreshold(), no free memory is kept afterwards.
  void GiveAll();
  // True if it has any of these segments, by SegmentSource::Range::id.
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
  // For tests: INTERNAL with a message that names the violation.
  absl::Status CheckInvariants() const;

 private:
  struct Segment {
    uint64_t id = 0;
    uint64_t bytes = 0;
  };
  // Unused addresses: free memory, or a hole without memory.
  struct Stretch {
    uintptr_t at = 0;
    uint64_t bytes = 0;
    bool hole = false;
  };
  struct Hole {
    uintptr_t at = 0;
    uint64_t bytes = 0;
  };
  // Addresses for a block, and the memory missing there.
  struct Place {
    uintptr_t at = 0;
    uint64_t bytes = 0;
    std::vector<Hole> holes;  // by address; none: unknown
    uint64_t missing = 0;     // in all of them
    uint64_t room = 0;        // of unused addresses behind the last hole
  };
  using Hook = std::function<void(const PoolEvent&)>;

  bool IsOwnProcess() const;
  Stream Named(Stream stream) const;
  // True if not captured. The legacy stream cannot be captured.
  bool IsFree(Stream stream) const { return stream == LegacyStream() || api_->IsFree(stream); }
  absl::Status ExplainCapture(Stream stream) const;
  // Returns the timeline of a stream that is not being captured.
  absl::StatusOr<Timeline*> Known(Stream stream) ABSL_LOCKS_EXCLUDED(mutex_);

  // --- Thread caches (engine.cc, engine_collection.cc) -------------------------
  // Blocks freed on one stream, on their way back to the heaps.
  struct Kept {
    Timeline* timeline = nullptr;
    std::vector<Chunk*> chunks;
  };
  bool Caching() const {
    return caching_.load(std::memory_order_relaxed) &&
           waiting_.load(std::memory_order_relaxed) == 0;
  }
  // Frees without a cache; `done`: no work on the block is pending.
  absl::Status FreeUncached(uintptr_t at, Stream stream, bool done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Null: this thread has no cache. KnownCacheOfThisThread never creates one and takes no lock.
  ThreadCache* CacheOfThisThread();
  ThreadCache* KnownCacheOfThisThread() const;
  // Null `data`: the cache has no block that fits. Small blocks may be larger by that many classes.
  static Block AllocateFromCache(ThreadCache* cache, uint64_t bytes, Stream stream, int larger = 0);
  bool HasRoom(const ThreadCache& cache, const KeptBlocks& kept, const Chunk& chunk) const;
  static Block TakeKept(ThreadCache& cache, KeptBlocks& kept, uint64_t bytes, int larger);
  // Puts a chunk into the cache; moves chunks that no longer fit to `spilled`.
  void Keep(ThreadCache& cache, KeptBlocks& kept, Chunk* chunk, std::vector<Chunk*>& spilled);
  // Removed from the cache's accounting until `PutBack()`. Requires `cache.lock`.
  void CountOut(ThreadCache& cache, absl::Span<Chunk* const> chunks);
  // Removes all blocks of one stream (null: all streams) from the cache. Requires `cache.lock`.
  void TakeKeptOf(ThreadCache& cache, const Timeline* timeline, std::vector<Kept>& out);
  // Return cached blocks to the heaps: those of this thread; of these, those beside large blocks of
  // the stream; those of all threads, of one stream (null: all). `forget`: the caches also forget
  // the stream.
  void CollectOwn() ABSL_LOCKS_EXCLUDED(mutex_);
  void CollectOwnLarge(Stream stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void CollectKept(const Timeline* timeline, bool forget) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes all blocks of a thread that ends.
  void TakeOver(ThreadCache& cache) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<ThreadCache>> Caches() const ABSL_LOCKS_EXCLUDED(caches_mutex_);
  uint64_t KeptBytes() const;

  // --- The heaps (engine_heaps.cc) -------------------------------------------------
  Block HandOut(Chunk* chunk, uint64_t bytes, Stream stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `shrinks`: true if memory above the release threshold is given back; false if it is about to be
  // used.
  void PutBack(const std::vector<Kept>& all, bool shrinks) ABSL_LOCKS_EXCLUDED(mutex_);
  void PutBack(absl::Span<Chunk* const> chunks, Timeline* timeline, bool shrinks)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the size of the free chunk that contains it then.
  uint64_t PutLarge(Chunk* chunk, Timeline* timeline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The stream that memory is freed on, or null if its work is done already.
  static Timeline* OwnerOf(const Chunk* chunk, Timeline* timeline);
  static size_t PartOf(const Chunk* chunk);  // of taken_bytes_
  // Destroys an old table once no thread reads it.
  void Retire(std::unique_ptr<PointerTable::Table> table) ABSL_LOCKS_EXCLUDED(mutex_);
  // From free memory of which it is known already that the stream may use it. Null for large
  // blocks.
  Chunk* TakeKnown(uint64_t bytes, Timeline* timeline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Also asks whether streams are done. Null: only growing helps.
  Chunk* TakeFor(uint64_t bytes, Timeline* timeline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Chunk* TakeFromLarge(uint64_t bytes, Timeline* timeline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the latest epoch of `of` that `by` may reuse with present knowledge, as the policy
  // allows.
  uint64_t Followed(const Timeline* by, const Timeline* of) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Chunk* TakeByWaiting(uint64_t bytes, Timeline* timeline, bool coupled_only)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Selects the streams whose events PollAll() polls. PollAll() frees completed chunks for all
  // streams.
  enum class Polled {
    kNothing,
    kMost,  // all that no other stream waits for an event of
    kAll,
  };
  void PollAll(const Timeline* but, Polled polled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Blocks until the work of the owners of free memory, or of one stream, is done. Returns the
  // first error, after waiting for the others.
  absl::Status WaitForOwners(Timeline* only) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Timeline*> Owners() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Small blocks (engine_small.cc) ----------------------------------------------
  static constexpr size_t kShards = 16;
  using Taken = TakenBytes<kShards>;
  // Allocates from this thread's shard, under its lock alone, or from another that no thread uses
  // just now. Null `data`: they have no memory that was freed on the stream or is clean.
  Block AllocateSmall(ThreadCache& cache, uint64_t bytes, Stream stream)
      ABSL_LOCKS_EXCLUDED(mutex_);
  size_t PreferredShard() const;
  // Returns the shards that may have memory, this thread's first.
  std::vector<SmallShard*> Shards() ABSL_LOCKS_EXCLUDED(caches_mutex_);
  Chunk* TakeFromShards(uint64_t bytes, Timeline* timeline, BlockHeap::Bound bound)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes a large chunk a range of small blocks, and takes the first.
  Chunk* TakeOfRange(Chunk* range, uint64_t bytes, Timeline* timeline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees small chunks under the locks of their shards alone. Returns shards with unused ranges.
  std::vector<SmallShard*> PutSmall(absl::Span<Chunk* const> chunks, Timeline* timeline);
  // Returns the shard's unused ranges to the large blocks. Returns the size of the largest free
  // chunk that contains one then.
  uint64_t ReturnRanges(SmallShard& shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Growing and shrinking (engine_growth.cc) ------------------------------------
  absl::Status Grow(uint64_t bytes, const Timeline* timeline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Leases the memory that the place lacks, or if that is unknown, `bytes` anywhere.
  absl::Status LeaseFor(const Place& place, uint64_t bytes, bool wish)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Leases that many bytes, or somewhat more, up to `most`. Releases the lock while it calls the
  // daemon.
  absl::Status Lease(uint64_t bytes, uint64_t most, uintptr_t at, bool wish)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The segments of one lease.
  struct Pieces {
    uint64_t each = 0;
    uint64_t count = 0;
  };
  Pieces Cut(uint64_t bytes, uint64_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Others lack memory: from now on leases only the need, until the pool grows or moves much again.
  void LeaseNoSpares() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds leased ranges to the pool.
  void Adopt(absl::Span<const SegmentSource::Range> ranges) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the size of new segments: the more there are, the larger.
  uint64_t SegmentBytes(uint64_t wanted) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the segments that are clean, each with its chunk, in descending order of addresses.
  // Removed in this order, the rest stays in one piece, and the part of a chunk before them remains
  // that chunk.
  std::vector<std::pair<uintptr_t, Chunk*>> FreeSegments() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes whole free segments from the heaps until they suffice, as long as at least `keep_bytes`
  // unused bytes stay reserved. Returns the segments to release.
  std::vector<Segment> Shrink(uint64_t keep_bytes, uint64_t enough_bytes = UINT64_MAX,
                              Polled polled = Polled::kAll) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Releases whole free segments as long as that many unused bytes stay. Returns the bytes given
  // back, with those that other threads were releasing.
  absl::StatusOr<uint64_t> ReleaseFree(uint64_t keep_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the bytes given back.
  uint64_t GiveFree(uint64_t bytes, Polled polled) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<uint64_t> ReleaseAll(const std::vector<Segment>& segments)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks while other threads release segments that they have removed from the heaps: for a moment
  // that memory is neither the pool's nor to be had again.
  void AwaitReleases() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Settings (engine_statistics.cc) ---------------------------------------------
  void SetThreshold(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // --- Allocating from the heaps, and waiting (engine_allocation.cc) ---------------
  absl::StatusOr<Block> AllocateFromHeaps(uint64_t bytes, Stream stream)
      ABSL_LOCKS_EXCLUDED(mutex_);
  class Allocation;
  struct Wanted {
    uint64_t bytes = 0;
    uint64_t rounded = 0;
    Stream stream = nullptr;
    Timeline* timeline = nullptr;
  };
  // Null `data`: not served; a retry may help, or the deadline has passed. Releases the lock.
  Block Await(const Wanted& wanted, const absl::Status& refusal, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits in the daemon's queue, until a block freed here serves as well.
  Block AwaitDaemon(const Wanted& wanted, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the size of one lease that would suffice; no bytes: unknown, or above the limit.
  Hole Missing(const Wanted& wanted) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Allocates from free memory of this pool.
  Block TryAgain(const Wanted& wanted) ABSL_LOCKS_EXCLUDED(mutex_);
  Block TakeOrNone(const Wanted& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Moving (engine_moves.cc) ----------------------------------------------------
  // Returns the unused address ranges, by address. Each lists adjacent holes and free memory that
  // the stream may use.
  std::vector<std::vector<Stretch>> Vacancies(const Timeline* timeline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns a place at the lower end of the vacancy, or at the upper; smaller if the vacancy is.
  static Place PlaceIn(absl::Span<const Stretch> vacancy, uint64_t bytes, uint64_t unit,
                       bool upwards);
  // Returns the place that lacks least.
  Place FindPlace(uint64_t bytes, const Timeline* timeline, uint64_t unit) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The move into one hole.
  struct Moving {
    uintptr_t to = 0;  // 0: not moved
    uint64_t bytes = 0;
    std::vector<std::pair<uintptr_t, Segment>> segments;  // with their former addresses
  };
  // Removes whole clean segments from the heap, as many as fit into the holes.
  std::vector<Moving> TakeForMoving(const Place& place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves available segments into the holes; afterwards `place` is the remainder. Releases the lock
  // while it calls the driver.
  void FillPlace(Place& place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Suspending (engine_suspension.cc) -------------------------------------------
  // Blocks are allocated in kRunning alone.
  enum class Stage {
    kRunning,
    kDraining,  // a thread gives free memory back, to suspend or resume the rest
    kMoving,    // it suspends or resumes the segments, and no other thread may touch them
    kSuspended,
  };
  // Ends allocations, gives free memory back, and begins kMoving. Returns the remaining segments.
  //   FAILED_PRECONDITION  the pool is at another stage than `from`
  absl::StatusOr<std::vector<uint64_t>> BeginMove(Stage from) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndMove(Stage to) ABSL_LOCKS_EXCLUDED(mutex_);
  static absl::Status SuspendedError();

  void Tell(PoolEvent::What what, uintptr_t at, uint64_t bytes, Stream stream);

  const std::unique_ptr<SegmentSource> source_;
  const std::unique_ptr<StreamApi> api_;
  const PoolOptions options_;
  const uint64_t id_;     // unique among this process's pools, never reused
  const uint64_t forks_;  // of the process: another number in a forked child
  std::atomic<bool> caching_{true};
  std::atomic<bool> releases_{false};  // a threshold is set: no thread caches large blocks
  // Threads that wait for memory, and one for a pool that is not at kRunning: no thread caches
  // blocks while it is above 0.
  std::atomic<int> waiting_{0};
  Taken taken_bytes_;  // out of the heaps: cached or used
  // Chunks that have left a cache and are not in a heap yet.
  ThreadCounter moving_;
  // Threads that wait until memory returns to the heaps: threads that return some notify them.
  std::atomic<int> watching_{0};

  mutable absl::Mutex mutex_;
  BlockHeap large_ ABSL_GUARDED_BY(mutex_){/*join_ranges=*/source_->places()};
  std::array<SmallShard, kShards> shards_;
  std::atomic<size_t> used_shards_{1};  // no shard from this one on has ever been used
  StreamOrder order_ ABSL_GUARDED_BY(mutex_){api_.get()};
  uint64_t range_bytes_ ABSL_GUARDED_BY(mutex_) =
      0;  // of large_'s chunks that are ranges of shards
  absl::btree_map<uintptr_t, Segment> segments_ ABSL_GUARDED_BY(mutex_);  // by address
  ReusePolicy policy_ ABSL_GUARDED_BY(mutex_);
  uint64_t limit_ ABSL_GUARDED_BY(mutex_);
  uint64_t release_threshold_ ABSL_GUARDED_BY(mutex_);
  uint64_t reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // The peak of used bytes plus the requested bytes, measured when memory was missing.
  uint64_t needed_peak_ ABSL_GUARDED_BY(mutex_) = 0;
  GrowthForecast forecast_ ABSL_GUARDED_BY(mutex_);
  SparePolicy spare_ ABSL_GUARDED_BY(mutex_);
  absl::Time disturbed_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // the last GiveBack
  bool growing_ ABSL_GUARDED_BY(mutex_) = false;  // a thread grows or moves; one at a time
  uint64_t sharing_ ABSL_GUARDED_BY(mutex_) = 0;  // threads in Share()
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kRunning;
  uint64_t moving_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // in segments that are in no heap meanwhile
  uint64_t releasing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // removed by Shrink(), not released yet
  uint64_t returns_ ABSL_GUARDED_BY(mutex_) = 0;          // how often memory returned to the heaps
  // Of threads that wait in the daemon's queue: nudged when memory returned.
  std::vector<std::shared_ptr<Interrupt>> awaiting_ ABSL_GUARDED_BY(mutex_);
  PoolStats counts_ ABSL_GUARDED_BY(mutex_);  // its counters and peaks
  std::function<bool(uint64_t)> out_of_memory_ ABSL_GUARDED_BY(mutex_);

  PointerTables table_;

  mutable absl::Mutex caches_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  std::vector<std::shared_ptr<ThreadCache>> caches_ ABSL_GUARDED_BY(caches_mutex_);

  mutable absl::Mutex hook_mutex_;
  std::shared_ptr<const Hook> hook_ ABSL_GUARDED_BY(hook_mutex_);
  std::atomic<bool> hooked_{false};

  // The link from caches of ending threads to this pool.
  struct Link {
    absl::Mutex mutex;
    Engine* engine ABSL_GUARDED_BY(mutex) = nullptr;
  };
  const std::shared_ptr<Link> link_;
  friend struct ThreadCaches;
};

}  // namespace gpumem::internal
