// SPDX-License-Identifier: Apache-2.0
// An allocator of blocks in GPU memory that this process leases. An ordinary Allocate or Free makes
// no call to the daemon. Its only call to the driver asks if a stream is being captured (not for
// the legacy default stream).
//
//   auto pool = gpumem::Pool::Create(client, {});
//   auto block = (*pool)->Allocate(1 << 20, stream);
//   kernel<<<..., stream>>>(block->data);
//   (*pool)->Free(*block, stream);                 // at once; the kernel may still run
//
// A pool leases segments of one device and one kind and cuts blocks out of them. It gives segments
// back on Trim(), and above its release threshold. It also does so before a further lease is
// denied, when other sessions are denied memory that it has free
// (PoolOptions::gives_under_pressure), and when it is destroyed. With kind vmm the segments lie one
// after another in one range of addresses if possible, and a block may span several. If free memory
// is fragmented, and the pool has leased a 32nd more than its peak use (up to a tenth, if it
// remaps often), it does not lease more. Instead it remaps whole free segments without pending work
// to other addresses, where they form one piece. Blocks in use never move.
//
// Streams. A block is for work on the stream that it was allocated on, submitted after Allocate. It
// is also for work that the program orders after such work (cudaStreamWaitEvent). Free(block,
// stream) says that the work submitted to that stream before is the last to use the block. If it is
// not the allocating stream, its work must be ordered after the allocating stream's. The same
// stream can reuse the memory at once. Another stream can reuse it once that work is known to be
// done or ordered first: see ReusePolicy. A stream is a cudaStream_t or CUstream of the pool's
// device. Null and cudaStreamLegacy are the legacy default stream; cudaStreamPerThread is each
// thread's own. The legacy stream and streams without cudaStreamNonBlocking wait for each other, as
// CUDA specifies: memory moves between them under any policy. Call ForgetStream() before a stream
// is destroyed: its handle may come to mean another stream. On the host backend work is
// synchronous, and a stream is a mere name.
//
// Graphs. Memory of a graph must be reserved as long as the graph can be launched. A stream that is
// being captured can therefore neither allocate nor free (FAILED_PRECONDITION): allocate before the
// capture begins. The pool never queries captured streams, or makes them wait, on behalf of others.
//
// Suspension. Suspend() moves the contents of all blocks to the daemon's host tier, frees the
// device memory, and keeps the addresses (gpumem/suspend.h). After Resume() blocks, pointers and
// graphs are valid as before. While a pool is suspended, and while Suspend() and Resume() are under
// way:
//   memory of blocks      must not be used, as that of suspended segments
//   Allocate, Share       FAILED_PRECONDITION at once, also for an Allocate that waits for memory
//   Free                  takes effect: the block's contents are dropped; its memory serves others
//                         after Resume()
//   Trim, FreeAllBlocks   give free memory back, except while the segments are on their way
//   Stats()               the segments still count as reserved
//   the destructor        drops the contents
//
// Threads: every function may be called from any thread. The thread that freed a small or recent
// block caches it until other threads need it.
// Sizes are bytes. In a child after fork() calls return FAILED_PRECONDITION, nothing or zero: a
// GPU's memory does not survive fork(). If the daemon is gone, leased memory still serves; growth
// returns UNAVAILABLE.
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

// Part of one or several segments. A plain value: a copy copies no memory, and its destructor frees
// none.
struct Block {
  void* data = nullptr;  // a multiple of 512
  uint64_t bytes = 0;    // usable: at least the requested size
};

// Which memory freed on another stream may be reused. Names and order are those of CUDA's memory
// pools (cudaMemPoolAttr).
struct ReusePolicy {
  // Reuse if this stream is known to wait for the pending work of that stream: see StreamWaits().
  bool follow_event_dependencies = true;
  // Reuse if the pending work of that stream is done by now.
  bool allow_opportunistic = true;
  // Reuse if the pool cannot grow: makes this stream wait on the GPU for that stream's work
  // (cudaStreamWaitEvent), which couples the two streams.
  bool allow_internal_dependencies = true;
};

struct PoolOptions {
  DeviceName device;  // as in AcquireOptions; "most-free" is chosen once
  Kind kind = Kind::kDefault;
  ReusePolicy reuse;
  // The meaning of a null stream. False: the legacy default stream. True: the thread's own, as for
  // code compiled with --default-stream per-thread.
  bool per_thread_default_stream = false;
  // The maximum that the pool leases. Should be a multiple of the granularity.
  uint64_t limit_bytes = UINT64_MAX;
  // When blocks are freed, whole free segments are given back as long as at least this much unused
  // memory stays. The default gives none back.
  uint64_t release_threshold_bytes = UINT64_MAX;
  // The initial size of segments, and the minimum that is leased at once. A larger pool has larger
  // segments: a 16th of its size, up to 64 MiB, or more if that would make over 512 segments. It
  // leases several at once (up to 256 MiB, or an 11th of its size while it grows fast), within its
  // limit. At most 1 TiB.
  uint64_t grow_bytes = uint64_t{8} << 20;
  // How long an Allocate waits for memory if none is left. It waits for blocks freed in this pool,
  // and in the daemon's queue (AcquireOptions::wait) for memory of other tenants and sessions. The
  // first to arrive serves it. The pool's other calls proceed meanwhile.
  absl::Duration wait = absl::ZeroDuration();
  // True if the pool gives back free memory when another session is denied memory that this would
  // provide (Pressure). A thread listens for that, from the first segment on. Ignored for kind
  // mempool: memory that CUDA's pool keeps would help no other session.
  bool gives_under_pressure = true;
  // True if the segments are revocable (AcquireOptions). When some are revoked (Revocation), also
  // because of the tenant's quota, the pool gives back free memory once the streams' work on it is
  // done. It then keeps no free memory until SetReleaseThreshold(). Without this option the pool
  // hears of revocations only while it gives under pressure.
  bool revocable = false;
  // Called in a thread of the pool if blocks in use lie in revoked segments. Copy out what matters
  // and free the blocks before the end, or the process is ended. The leases are all the session's
  // revoked ones. Must not destroy the pool. Empty: none.
  std::function<void(const Revocation&)> on_revocation;
  // The GPUs that will use the memory, as in AcquireOptions. Empty: the pool's device.
  std::vector<DeviceName> map_devices;
  // True if threads cache freed blocks. False: every call takes the pool's lock, and the peaks of
  // PoolStats are exact at every moment.
  bool thread_caches = true;
};

// Bytes, except for counts. Blocks in thread caches count as free.
struct PoolStats {
  uint64_t reserved_bytes = 0;  // in leased segments
  uint64_t used_bytes = 0;      // in allocated blocks, rounded up
  uint64_t free_bytes = 0;      // the difference
  uint64_t used_blocks = 0;
  uint64_t free_blocks = 0;  // runs of free memory
  uint64_t segments = 0;
  // Peaks since the pool was created or ResetPeaks(). The peak of used bytes counts blocks in
  // thread caches as used. With several threads it may be too low by 4 MiB for each, up to 16.
  uint64_t reserved_peak_bytes = 0;
  uint64_t used_peak_bytes = 0;
  // Counts since the pool was created.
  uint64_t allocations = 0;
  uint64_t frees = 0;
  uint64_t growths = 0;             // segments leased
  uint64_t moves = 0;               // free segments remapped to form a block with others
  uint64_t reused_after_event = 0;  // reuses of another stream's memory whose work was done
  uint64_t dependencies = 0;        // streams made to wait for another stream
  uint64_t out_of_memory = 0;       // failed allocations
  uint64_t given_under_pressure_bytes = 0;
};

// As cudaMemGetInfo, within the tenant's quota.
struct MemInfo {
  uint64_t free_bytes = 0;   // free in this pool, plus what its tenant can still get
  uint64_t total_bytes = 0;  // that the tenant may have on the device
};

// An event for the allocation hook. The remapping of a segment is a kShrink and a kGrow.
struct PoolEvent {
  enum class What { kAllocate, kFree, kGrow, kShrink };
  What what = What::kAllocate;
  void* data = nullptr;
  uint64_t bytes = 0;
  Stream stream = nullptr;
};

class Pool {
 public:
  // Creates a pool; leases nothing yet. Shares ownership of the client.
  //   INVALID_ARGUMENT   the options are invalid, or ask for a revocable pool of kind mempool
  //   NOT_FOUND, UNIMPLEMENTED  as Client::Acquire, of the device and kind; UNIMPLEMENTED also if
  //                             this library knows no kind that the device makes (a newer daemon)
  //   UNAVAILABLE        this process has no usable CUDA driver, or the daemon is gone
  static absl::StatusOr<std::unique_ptr<Pool>> Create(std::shared_ptr<Client> client,
                                                      const PoolOptions& options);

  // Gives all segments back. Requires that no block is in use: blocks that were not freed become
  // invalid. On a GPU, blocks until the streams' work before each free is done.
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Allocates a block for work on `stream`.
  //   INVALID_ARGUMENT     zero bytes, or more than the device has; or the stream is of another
  //                        device
  //   RESOURCE_EXHAUSTED   the pool's limit, a quota or the device denies it (Denial), also after
  //                        all free memory was given back and the wait was over
  //   FAILED_PRECONDITION  the stream is being captured into a graph, or the pool is suspended
  //   UNAVAILABLE          the pool would have to grow, and the daemon is gone
  absl::StatusOr<Block> Allocate(uint64_t bytes, Stream stream);

  // Allocates from this thread's cache only: never calls the daemon and never blocks on a thread.
  // It may ask the driver if the stream is being captured. For callers that hold a contended lock,
  // such as Python's. Null `data`: call Allocate.
  Block TryAllocate(uint64_t bytes, Stream stream);

  // As cudaMalloc: allocates a block with no pending work, usable on every stream, also during
  // captures. For callers that do not know the stream; free it with FreeSynchronized. If the pool
  // cannot grow, blocks until the work of the streams that freed memory is done. Statuses as
  // Allocate, but also during captures.
  absl::StatusOr<Block> AllocateSynchronized(uint64_t bytes);

  // Frees a block after the work submitted to `stream` so far.
  //   INVALID_ARGUMENT     not a block of this pool, or freed already; or the stream is of another
  //                        device
  //   FAILED_PRECONDITION  the stream is being captured into a graph
  absl::Status Free(const Block& block, Stream stream);
  // Frees the block at this address; statuses as above.
  absl::Status Free(void* data, Stream stream);
  // True if it freed the block into this thread's cache, as TryAllocate. False: did nothing; call
  // Free.
  bool TryFree(void* data, Stream stream);

  // As cudaFree: blocks until all work of the device is done. The memory is then usable on every
  // stream.
  //   INVALID_ARGUMENT  as Free
  //   INTERNAL          the driver's error, by its name; also during the capture of a graph
  //                     (cuCtxSynchronize is forbidden then). The block is not freed
  absl::Status FreeSynchronized(void* data);

  // Returns the block that begins at this address.
  //   NOT_FOUND  there is none
  absl::StatusOr<Block> Find(void* data) const;

  // Returns a ticket with which sessions of the same tenant open the block (OpenBlock), valid as
  // long as the pool has its segments. Do not free the block while others use it: its memory would
  // be reused. Asks the daemon once for each segment.
  //   INVALID_ARGUMENT     not a block of this pool
  //   FAILED_PRECONDITION  the pool is suspended
  absl::StatusOr<Ticket> Share(const Block& block);

  // Tells the pool that all future work on `waiting` is ordered after the work submitted to
  // `awaited` so far (cudaStreamWaitEvent on an event just recorded there).
  //   INVALID_ARGUMENT     a stream is of another device
  //   FAILED_PRECONDITION  a stream is being captured into a graph
  absl::Status StreamWaits(Stream waiting, Stream awaited);
  // Call before a stream is destroyed. Its memory is reused once its work is done. Does nothing for
  // a stream that the pool has not been called with.
  //   FAILED_PRECONDITION  the stream is being captured into a graph
  absl::Status ForgetStream(Stream stream);

  // Gives back whole free segments as long as at least `keep_bytes` of unused memory stay
  // (cudaMemPoolTrimTo). Returns the bytes given back, with those that other threads give back at
  // the same time. Never waits for GPU work: memory with pending work stays.
  absl::StatusOr<uint64_t> Trim(uint64_t keep_bytes);
  // Blocks until the work of all streams that freed blocks is done, and gives back all free memory.
  absl::StatusOr<uint64_t> FreeAllBlocks();
  // Blocks until the work of this stream alone is done, and gives back all free memory.
  absl::StatusOr<uint64_t> FreeAllBlocks(Stream stream);

  // Suspends the pool, or changes nothing (see above). Gives back free memory first: blocks until
  // the work of all streams that freed blocks is done. Then suspends the other segments as
  // Client::Suspend does. Without options.quiesce that waits for the work in the primary contexts
  // of the device. The program needs no callback, but its threads must not submit work on blocks.
  // An Allocate of another thread at the same time succeeds or fails. If no block is in use, the
  // daemon is not asked and options.quiesce not called. More than 1,024 segments take several calls
  // to the daemon, all or none.
  //   FAILED_PRECONDITION  suspended already; or another thread suspends or resumes it
  //   UNIMPLEMENTED        a pool of another kind than vmm
  //   and as Client::Suspend: FAILED_PRECONDITION for a revocable pool, RESOURCE_EXHAUSTED
  // After an error the pool is as before, or suspended() if the message says so.
  absl::Status Suspend(const SuspendOptions& options);
  absl::Status Suspend();
  // Brings the pool back. Segments whose blocks were freed meanwhile are given back instead.
  //   FAILED_PRECONDITION  not suspended; or another thread suspends or resumes it
  //   and as Client::Resume; after any error the pool stays suspended
  absl::Status Resume(const ResumeOptions& options);
  absl::Status Resume();
  // True from the beginning of a Suspend() to the end of the Resume() that succeeds.
  bool suspended() const;

  // Limits further leases. Memory leased above the limit stays until it is trimmed.
  absl::Status SetLimit(uint64_t bytes);
  // Limits to a fraction, above 0 and up to 1, of what the tenant may have on the device.
  //   INVALID_ARGUMENT  another fraction
  //   UNAVAILABLE       the daemon is gone
  absl::Status SetLimitFraction(double fraction);
  uint64_t limit() const;
  void SetReleaseThreshold(uint64_t bytes);
  // Sets PoolOptions::gives_under_pressure. False: blocks until no memory is being given back any
  // more. Must not be called by PoolOptions::on_revocation.
  void SetGivesUnderPressure(bool gives);
  void SetReusePolicy(const ReusePolicy& policy);

  PoolStats Stats() const;
  void ResetPeaks();
  absl::StatusOr<MemInfo> MemGetInfo();

  // Sets the function called for every block and segment, in the thread that caused it. That may be
  // the pool's thread (gives_under_pressure), and may hold the pool's lock. The hook must not call
  // the pool, nor wait for a thread that may. While it is set, threads cache no blocks. Empty:
  // none.
  void SetHook(std::function<void(const PoolEvent&)> hook);
  // Sets the function called before an Allocate of that many bytes fails, in its thread, without
  // locks. It returns true if it freed memory and a retry is worthwhile. Empty: none.
  void SetOutOfMemoryCallback(std::function<bool(uint64_t bytes)> callback);

  const std::string& device_uuid() const;
  Kind kind() const;
  Backend backend() const;

 private:
  class Impl;
  explicit Pool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A block of another session's pool, opened here. Move-only. The destructor unmaps the block's
// segments unless another open block needs them.
class SharedBlock {
 public:
  SharedBlock() = default;
  SharedBlock(SharedBlock&&) noexcept = default;
  SharedBlock& operator=(SharedBlock&&) noexcept = default;

  void* data() const { return data_; }  // null if default-constructed
  uint64_t bytes() const { return bytes_; }
  // Those of its segments; "" and meaningless if default-constructed.
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

// Opens the block of a ticket from Pool::Share. One client opens and maps a segment once for all
// its blocks that are opened with the same options.
//   INVALID_ARGUMENT  not the ticket of a block; or options.address is set
//   UNIMPLEMENTED     the block lies in several segments, of a kind that is not mapped in one range
//   and as Client::Open
absl::StatusOr<SharedBlock> OpenBlock(Client& client, absl::string_view ticket,
                                      const OpenOptions& options = {});

}  // namespace gpumem
