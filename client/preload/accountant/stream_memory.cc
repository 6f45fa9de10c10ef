// SPDX-License-Identifier: Apache-2.0
#include "client/preload/accountant/stream_memory.h"

#include <algorithm>

namespace gpumem::preload {
namespace {

// As CUDA's pools count blocks.
uint64_t Counted(uint64_t bytes) { return (bytes + 511) / 512 * 512; }

}  // namespace

int StreamMemory::Allocate(gpumem_pool* pool, uint64_t bytes, void* stream, void** data) {
  gpumem_block block = {};
  const int status = gpumem_pool_allocate(pool, bytes, stream, &block);
  if (status != GPUMEM_OK) return status;
  *data = block.data;
  Count(bytes);
  return status;
}

void StreamMemory::Count(uint64_t bytes) {
  const uint64_t used = used_.fetch_add(Counted(bytes), std::memory_order_relaxed) + Counted(bytes);
  uint64_t high = used_high_.load(std::memory_order_relaxed);
  while (used > high && !used_high_.compare_exchange_weak(high, used, std::memory_order_relaxed)) {
  }
}

void StreamMemory::CountFree(uint64_t bytes) {
  used_.fetch_sub(Counted(bytes), std::memory_order_relaxed);
}

gpumem_pool* StreamMemory::PoolOf(absl::FunctionRef<gpumem_pool*()> make) {
  absl::MutexLock lock(&mutex_);
  gpumem_pool* pool = this->pool();
  if (pool != nullptr) return pool;
  pool = make();
  if (pool == nullptr) return nullptr;
  (void)gpumem_pool_set_reuse(pool, reuse_);
  pool_.store(pool, std::memory_order_release);
  return pool;
}

gpumem_pool* StreamMemory::Take() {
  absl::MutexLock lock(&mutex_);
  used_.store(0, std::memory_order_relaxed);
  return pool_.exchange(nullptr);
}

GpumemPoolFigures StreamMemory::Figures() const {
  GpumemPoolFigures figures = {};
  figures.used = used_.load(std::memory_order_relaxed);
  figures.used_high = std::max(figures.used, used_high_.load(std::memory_order_relaxed));
  gpumem_pool_stats stats = {.struct_size = sizeof(stats)};
  gpumem_pool* const pool = this->pool();
  if (pool == nullptr || gpumem_pool_get_stats(pool, &stats) != GPUMEM_OK) return figures;
  figures.reserved = stats.reserved_bytes;
  figures.reserved_high = std::max(stats.reserved_bytes, stats.reserved_peak_bytes);
  return figures;
}

void StreamMemory::ResetHigh(bool of_used) {
  if (of_used) {
    used_high_.store(used_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  } else if (gpumem_pool* const pool = this->pool()) {
    (void)gpumem_pool_reset_peaks(pool);
  }
}

void StreamMemory::Trim(uint64_t least_reserved) {
  gpumem_pool* const pool = this->pool();
  gpumem_pool_stats stats = {.struct_size = sizeof(stats)};
  if (pool == nullptr || gpumem_pool_get_stats(pool, &stats) != GPUMEM_OK) return;
  const uint64_t kept = least_reserved - std::min(least_reserved, stats.used_bytes);
  (void)gpumem_pool_trim(pool, kept, nullptr);
}

void StreamMemory::SetReuse(uint32_t flags) {
  uint32_t reuse = GPUMEM_REUSE_SAME_STREAM;
  if ((flags & GPUMEM_STREAM_REUSE_FOLLOW_EVENT_DEPENDENCIES) != 0)
    reuse |= GPUMEM_REUSE_FOLLOW_EVENT_DEPENDENCIES;
  if ((flags & GPUMEM_STREAM_REUSE_ALLOW_OPPORTUNISTIC) != 0)
    reuse |= GPUMEM_REUSE_ALLOW_OPPORTUNISTIC;
  if ((flags & GPUMEM_STREAM_REUSE_ALLOW_INTERNAL_DEPENDENCIES) != 0)
    reuse |= GPUMEM_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
  absl::MutexLock lock(&mutex_);
  reuse_ = reuse;
  if (gpumem_pool* const pool = this->pool()) (void)gpumem_pool_set_reuse(pool, reuse);
}

}  // namespace gpumem::preload
