// An allocator of blocks in GPU memory that this process leases: no call to the daemon on the way
// of an ordinary Allocate or Free, and none to the driver but the question whether a stream is
// being captured (not asked of the legacy default stream).
//
//   auto pool = gpumem::Pool::Create(client, {});
//   auto block = (*pool)->Allocate(1 << 20, stream);
//   kernel<<<..., stream>>>(block->data);
//   (*pool)->Free(*block, stream);                 // at once; the kernel may still run
//
// A pool leases segments of one device and one kind, cuts blocks out of them, and gives
// segments back by Trim(), above its release threshold, before it is refused more, when others are
// denied memory (gives_under_pressure), and at its end. With kind vmm the
// segments lie one after another in one range of addresses where they can, and a block may
// span several. Where what is free lies scattered, and the pool has leased a 32nd more than was
// ever needed at once, it does not lease more: whole free segments that nobody has work on are
// mapped at other addresses, where they make one piece. Blocks that are in use stay where they are.
//
// Streams. A block is for work on the stream that it was allocated on, submitted after
// Allocate, and for work that the program orders after something that it has submitted there
// since (cudaStreamWaitEvent). Free(block, stream) says that the work submitted to that stream
// before is the last to use it; where that is another stream than the block was allocated on, its
// work must be ordered after that of the first. The same stream gets the memory again at once.
// Another gets it when that work is known to be done or to come first: see ReusePolicy. A stream is
// a cudaStream_t or CUstream of the pool's device; null and cudaStreamLegacy are the legacy default
// stream, cudaStreamPerThread is each thread's own. The legacy stream and those that are made
// without cudaStreamNonBlocking wait for each other, as CUDA says: between them memory goes
// whatever the policy. Before a stream is destroyed, ForgetStream() must be called: its handle may
// come to mean another stream. On the host backend nothing runs behind the caller's back, and a
// stream is a mere name.
//
// Graphs. Memory of a graph must stay its own for as long as the graph can be launched, so a
// stream that is being captured gets and gives no blocks (FAILED_PRECONDITION): allocate before
// the capture begins. Nor are captured streams asked or made to wait on behalf of others.
//
// Threads: every function may be called from any thread. Small and recently freed blocks are
// kept by the thread that freed them, until others need them.
// Sizes are bytes. In a child after fork() calls answer FAILED_PRECONDITION, nothing or zero: a
// GPU's memory does not survive fork().
// When the daemon is gone, what is leased goes on serving; growth is UNAVAILABLE.
// When other sessions are denied memory that this pool has free, the daemon says so and the pool
// gives it back (PoolOptions::gives_under_pressure).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gpumem/client.h"

namespace gpumem {

// A cudaStream_t or CUstream.
using Stream = void*;

// Part of one or several segments. A plain value: copying it copies no memory, and its end frees
// none.
struct Block {
  void* data = nullptr;  // a multiple of 512
  uint64_t bytes = 0;    // that may be used: at least what was asked for
};

// Which memory that was freed on another stream may be reused. The names and the order are those
// of CUDA's memory pools (cudaMemPoolAttr).
struct ReusePolicy {
  // What that stream has to do first, this one is known to wait for: see StreamWaits().
  bool follow_event_dependencies = true;
  // What that stream had to do first is done by now.
  bool allow_opportunistic = true;
  // Where the pool cannot grow: lets the GPU finish that stream's work first
  // (cudaStreamWaitEvent), which couples the two streams.
  bool allow_internal_dependencies = true;
};

struct PoolOptions {
  DeviceName device;  // as in AcquireOptions; "most-free" is chosen once
  Kind kind = Kind::kDefault;
  ReusePolicy reuse;
  // What a stream of null means: the legacy default stream, or the thread's own, as for code
  // that is compiled with --default-stream per-thread.
  bool per_thread_default_stream = false;
  // The pool leases no more than this; a multiple of the granularity is meant.
  uint64_t limit_bytes = UINT64_MAX;
  // When blocks are freed, whole free segments go back to the daemon as long as at least so much
  // stays that is not used. By default none do.
  uint64_t release_threshold_bytes = UINT64_MAX;
  // How large segments are, and the least that is leased at once, at first. A larger pool has
  // larger segments (a 32nd of what it has, up to 32 MiB, more where they would be more than 512)
  // and leases several at once (up to 256 MiB), but none that its limit does not leave.
  uint64_t grow_bytes = uint64_t{8} << 20;
  // How long an Allocate waits for memory where there is none left: for blocks that are freed
  // here, and in the daemon's queue (AcquireOptions::wait) for what other tenants and sessions give
  // back, whichever is there first. Meanwhile the pool's other calls go on.
  absl::Duration wait = absl::ZeroDuration();
  // Whether the pool gives back what it has free when someone is denied memory that this would be
  // (Pressure). A thread listens for that, from the first segment on. A pool of kind mempool does
  // not: what CUDA keeps of it would help nobody.
  bool gives_under_pressure = true;
  // Its segments are revocable (AcquireOptions). When some are taken back (Revocation), also where
  // they are so by the tenant's quota, the pool gives back what is free once the streams' work on
  // it is done, and keeps nothing that is free from then on, until SetReleaseThreshold(). A pool
  // whose segments are not revocable by this option hears of it only as long as it gives under
  // pressure, too.
  bool revocable = false;
  // Called then, in a thread of the pool's, where blocks that are in use lie in segments that are
  // taken back: copy out what matters and free them before the end, or the process is ended. Given
  // the session's leases that are taken back. It must not end the pool. Empty: none.
  std::function<void(const Revocation&)> on_revocation;
  // Whether threads keep freed blocks for themselves. Off, every call takes the pool's one lock,
  // and the marks of PoolStats are exact at every moment.
  bool thread_caches = true;
};

// Bytes but for counts. What threads keep for themselves counts as free.
struct PoolStats {
  uint64_t reserved_bytes = 0;  // in leased segments
  uint64_t used_bytes = 0;      // in blocks that are allocated, rounded up
  uint64_t free_bytes = 0;      // the difference
  uint64_t used_blocks = 0;
  uint64_t free_blocks = 0;  // runs of free memory
  uint64_t segments = 0;
  // High-water marks since the pool was made or ResetPeaks(). That of used bytes counts what
  // threads keep as used.
  uint64_t reserved_peak_bytes = 0;
  uint64_t used_peak_bytes = 0;
  // How often, since the pool was made.
  uint64_t allocations = 0;
  uint64_t frees = 0;
  uint64_t growths = 0;  // segments leased
  uint64_t moves = 0;    // free segments put where they made a block together with others
  uint64_t reused_after_event = 0;  // another stream's memory whose work was seen to be done
  uint64_t dependencies = 0;        // streams that were made to wait for another
  uint64_t out_of_memory = 0;       // refusals
  uint64_t given_under_pressure_bytes = 0;
};

// As cudaMemGetInfo, by the quota's view.
struct MemInfo {
  uint64_t free_bytes = 0;   // free in this pool, and what its tenant can still get for it
  uint64_t total_bytes = 0;  // that the tenant may have on the device
};

// What an allocation hook is told of. A segment that is moved is one that goes (kShrink) and one
// that comes.
struct PoolEvent {
  enum class What { kAllocate, kFree, kGrow, kShrink };
  What what = What::kAllocate;
  void* data = nullptr;
  uint64_t bytes = 0;
  Stream stream = nullptr;
};

class Pool {
 public:
  // Leases nothing yet. The client is kept for as long as the pool lives.
  //   INVALID_ARGUMENT   the options make no sense
  //   NOT_FOUND, UNIMPLEMENTED  as Client::Acquire, of the device and kind
  //   UNAVAILABLE        this process has no usable CUDA driver, or the daemon is gone
  //   INVALID_ARGUMENT   a revocable pool of kind mempool
  static absl::StatusOr<std::unique_ptr<Pool>> Create(std::shared_ptr<Client> client,
                                                      const PoolOptions& options);

  // Gives all segments back. No block may be in use: on a GPU it waits for the work of the
  // streams that blocks were freed on, and blocks that were not freed are gone.
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  //   INVALID_ARGUMENT     zero bytes, or more than the device has; or the stream is of another
  //                        device
  //   RESOURCE_EXHAUSTED   the pool's limit, a quota or the device stands in the way (Denial), also
  //                        after all that was free was given back and the wait was over
  //   FAILED_PRECONDITION  the stream is being captured into a graph
  //   UNAVAILABLE          the pool would have to grow, and the daemon is gone
  absl::StatusOr<Block> Allocate(uint64_t bytes, Stream stream);

  // The same of what this thread keeps for itself: no call to the daemon or the driver but the
  // question whether the stream is being captured, and no wait for another thread. For callers that
  // hold what others need meanwhile, such as Python's lock. Null `data`: ask Allocate.
  Block TryAllocate(uint64_t bytes, Stream stream);

  // As cudaMalloc: a block for whichever stream, since nobody works on its memory; also while
  // streams are being captured. For callers that know no streams, or not when they ask; they give
  // it back by FreeSynchronized. Where the pool cannot grow it waits for the work of the streams
  // that have freed what there is.
  //   as Allocate, but for FAILED_PRECONDITION
  absl::StatusOr<Block> AllocateSynchronized(uint64_t bytes);

  //   INVALID_ARGUMENT     not a block of this pool, or freed already; or the stream is of another
  //                        device
  //   FAILED_PRECONDITION  the stream is being captured into a graph
  absl::Status Free(const Block& block, Stream stream);
  // The same by the block's address.
  absl::Status Free(void* data, Stream stream);
  // The same where this thread keeps the block, as TryAllocate; else nothing, and false: call Free.
  bool TryFree(void* data, Stream stream);

  // As cudaFree: waits for all work of the device, and then anybody may have the memory.
  //   INVALID_ARGUMENT  as Free
  //   INTERNAL          the driver's error, by its name; so while a stream is being captured into a
  //                     graph (cuCtxSynchronize is forbidden then). The block is not freed
  absl::Status FreeSynchronized(void* data);

  // The block that begins at this address.
  //   NOT_FOUND  none does
  absl::StatusOr<Block> Find(void* data) const;

  // A ticket for the block, with which sessions of the same tenant open it (OpenBlock), for as long
  // as the pool has its segments. The block must not be freed while others use it: its memory would
  // be given to the next. Asks the daemon once for each segment.
  //   INVALID_ARGUMENT  not a block of this pool
  absl::StatusOr<Ticket> Share(const Block& block);

  // Tells the pool that all work on `waiting` from here on comes after the work that was submitted
  // to `awaited` before (cudaStreamWaitEvent on an event that was recorded there just now).
  absl::Status StreamWaits(Stream waiting, Stream awaited);
  // To be called before a stream is destroyed. Its memory is reused when its work is done.
  absl::Status ForgetStream(Stream stream);

  // Gives whole free segments back as long as at least `keep_bytes` stay that are not used
  // (cudaMemPoolTrimTo). Answers how many bytes went. Waits for no GPU work: what is not done by
  // now stays.
  absl::StatusOr<uint64_t> Trim(uint64_t keep_bytes);
  // Waits for the work of all streams that have freed blocks, and gives back all that is free.
  absl::StatusOr<uint64_t> FreeAllBlocks();
  // Waits for the work of one stream alone, and gives back all that is free then.
  absl::StatusOr<uint64_t> FreeAllBlocks(Stream stream);

  // More than that is not leased from here on; what is leased above it stays until it is trimmed.
  absl::Status SetLimit(uint64_t bytes);
  // Of what the tenant may have on the device, above 0 and up to 1.
  absl::Status SetLimitFraction(double fraction);
  uint64_t limit() const;
  void SetReleaseThreshold(uint64_t bytes);
  // PoolOptions::gives_under_pressure from here on. Switched off, it waits until nothing is being
  // given back any more. Not to be called by PoolOptions::on_revocation.
  void SetGivesUnderPressure(bool gives);
  void SetReusePolicy(const ReusePolicy& policy);

  PoolStats Stats() const;
  void ResetPeaks();
  absl::StatusOr<MemInfo> MemGetInfo();

  // Called for every block and segment, in the thread that caused it, which may be the pool's own
  // (gives_under_pressure) and may hold the pool's lock; it must not call the pool, nor wait for
  // who may be calling it.
  // While there is one, threads keep no blocks for themselves. Empty: none.
  void SetHook(std::function<void(const PoolEvent&)> hook);
  // Called where an Allocate of so many bytes would fail, by its thread, which holds no lock: true
  // where something was freed and it is worth another try. Empty: none.
  void SetOutOfMemoryCallback(std::function<bool(uint64_t bytes)> callback);

  const std::string& device_uuid() const;
  Kind kind() const;
  Backend backend() const;

 private:
  class Impl;
  explicit Pool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A block of another session's pool, opened here. Move-only; its end unmaps the block's segments
// where no other block of them is open.
class SharedBlock {
 public:
  SharedBlock() = default;
  SharedBlock(SharedBlock&&) noexcept = default;
  SharedBlock& operator=(SharedBlock&&) noexcept = default;

  void* data() const { return data_; }  // null when default-made
  uint64_t bytes() const { return bytes_; }
  // Those of its segments; "" and of no meaning when default-made.
  const std::string& device_uuid() const { return device_uuid_; }
  Kind kind() const { return kind_; }
  Backend backend() const { return backend_; }

 private:
  friend absl::StatusOr<SharedBlock> OpenBlock(Client& client, absl::string_view ticket,
                                               const OpenOptions& options);
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
  std::string device_uuid_;
  Kind kind_ = Kind::kDefault;
  Backend backend_ = Backend::kHost;
  std::shared_ptr<const void> memory_;
};

// Opens what Pool::Share gave a ticket for. A segment is opened and mapped once for all of its
// blocks that are opened with the same options by one client.
//   INVALID_ARGUMENT  not the ticket of a block; or options.address is set
//   UNIMPLEMENTED     the block lies in several segments, of a kind that is not mapped in one range
//   and as Client::Open
absl::StatusOr<SharedBlock> OpenBlock(Client& client, absl::string_view ticket,
                                      const OpenOptions& options = {});

}  // namespace gpumem
