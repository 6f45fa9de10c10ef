// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory of one device (client/preload/brokered/stream_memory.h), over a pool of
// libgpumem.
//
// The pool is not the one of cuMemAlloc(). Programs read figures of a memory pool, of which that
// memory is no part. And no work of streams is pending on it.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "client/preload/brokered/stream_memory.h"
#include "gpumem/gpumem.h"

namespace gpumem::preload {

class StreamMemory {
 public:
  StreamMemory() = default;
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  // Allocates a block of the pool for work on a stream. Returns a status of libgpumem.
  int Allocate(gpumem_pool* pool, uint64_t bytes, void* stream, void** data);
  // Counts a block of that many bytes, as asked for, that is about to be freed in the pool; and one
  // that is not, after all.
  void CountFree(uint64_t bytes);
  void Count(uint64_t bytes);

  // Returns the pool; null before the first allocation, and after Take().
  gpumem_pool* pool() const { return pool_.load(std::memory_order_acquire); }
  // Returns the pool; makes it if there is none. Null if that fails. `make` returns a new pool, or
  // null. At the first allocation, as the pool needs the device's primary context.
  gpumem_pool* PoolOf(absl::FunctionRef<gpumem_pool*()> make);
  // Returns the pool, for the caller to destroy. No call may be under way.
  gpumem_pool* Take();

  GpumemPoolFigures Figures() const;
  void ResetHigh(bool of_used);
  void Trim(uint64_t least_reserved);
  // Flags of enum GpumemStreamReuse.
  void SetReuse(uint32_t flags);

 private:
  std::atomic<gpumem_pool*> pool_{nullptr};
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> used_high_{0};
  absl::Mutex mutex_;
  uint32_t reuse_ ABSL_GUARDED_BY(mutex_) = GPUMEM_REUSE_DEFAULT;  // of enum gpumem_reuse
};

}  // namespace gpumem::preload
