// SPDX-License-Identifier: Apache-2.0
// The pool's settings, its hook and its statistics.
#include <algorithm>
#include <deque>
#include <utility>

#include "client/pool/engine.h"

namespace gpumem::internal {

absl::Status Engine::SetLimit(uint64_t bytes) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  limit_ = bytes;
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Engine::TotalBytes() {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const absl::StatusOr<std::pair<uint64_t, uint64_t>> room = source_->Room();
  if (!room.ok()) return room.status();
  return room->second;
}

uint64_t Engine::limit() const {
  if (!CheckProcess().ok()) return 0;
  absl::MutexLock lock(&mutex_);
  return limit_;
}

void Engine::SetReleaseThreshold(uint64_t bytes) {
  if (!CheckProcess().ok()) return;
  caching_ = options_.thread_caches && !hooked_;
  SetThreshold(bytes);
}

void Engine::SetThreshold(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  release_threshold_ = bytes;
  releases_ = bytes != UINT64_MAX;
}

void Engine::SetReusePolicy(const ReusePolicy& policy) {
  if (!CheckProcess().ok()) return;
  absl::MutexLock lock(&mutex_);
  policy_ = policy;
}

PoolStats Engine::Stats() const {
  if (!CheckProcess().ok()) return {};
  absl::MutexLock lock(&mutex_);
  PoolStats stats = counts_;
  uint64_t kept_bytes = 0, kept_blocks = 0;
  {
    absl::MutexLock listed(&caches_mutex_);
    for (const auto& cache : caches_) {
      kept_bytes += cache->kept_bytes.value();
      kept_blocks += cache->kept_blocks.value();
      stats.allocations += cache->allocations.value();
      stats.frees += cache->frees.value();
    }
  }
  stats.reserved_bytes = reserved_bytes_;
  // Threads continue meanwhile.
  const uint64_t taken = taken_bytes_.value();
  stats.used_bytes = taken - std::min(taken, kept_bytes);
  stats.free_bytes = stats.reserved_bytes - stats.used_bytes;
  const uint64_t blocks = table_.size();
  stats.used_blocks = blocks - std::min(blocks, kept_blocks);
  stats.free_blocks = large_.free_chunks() + kept_blocks;
  for (const SmallShard& shard : shards_) {
    const PlainMutexLock counting(&shard.mutex);
    stats.free_blocks += shard.heap.free_chunks();
  }
  stats.used_peak_bytes = taken_bytes_.peak();
  stats.segments = segments_.size();
  return stats;
}

void Engine::ResetPeaks() {
  if (!CheckProcess().ok()) return;
  absl::MutexLock lock(&mutex_);
  counts_.reserved_peak_bytes = reserved_bytes_;
  taken_bytes_.ResetPeak();
}

absl::StatusOr<MemInfo> Engine::MemGetInfo() {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const absl::StatusOr<std::pair<uint64_t, uint64_t>> room = source_->Room();
  if (!room.ok()) return room.status();
  const uint64_t kept = KeptBytes();
  absl::MutexLock lock(&mutex_);
  const uint64_t taken = taken_bytes_.value();
  const uint64_t used = taken - std::min(taken, kept);
  const uint64_t more = std::min(room->first, limit_ - std::min(limit_, reserved_bytes_));
  return MemInfo{.free_bytes = reserved_bytes_ - used + more,
                 .total_bytes = std::min(room->second, limit_)};
}

void Engine::SetHook(std::function<void(const PoolEvent&)> hook) {
  if (!CheckProcess().ok()) return;
  const bool any = hook != nullptr;
  {
    absl::MutexLock lock(&hook_mutex_);
    hook_ = any ? std::make_shared<const Hook>(std::move(hook)) : nullptr;
    hooked_ = any;
  }
  caching_ = options_.thread_caches && !any;
  if (any) CollectKept(nullptr, /*forget=*/false);
}

void Engine::SetOutOfMemoryCallback(std::function<bool(uint64_t bytes)> callback) {
  if (!CheckProcess().ok()) return;
  absl::MutexLock lock(&mutex_);
  out_of_memory_ = std::move(callback);
}

void Engine::Tell(PoolEvent::What what, uintptr_t at, uint64_t bytes, Stream stream) {
  if (!hooked_.load(std::memory_order_relaxed)) return;
  std::shared_ptr<const Hook> hook;
  {
    absl::MutexLock lock(&hook_mutex_);
    hook = hook_;
  }
  if (hook != nullptr) {
    (*hook)({.what = what, .data = reinterpret_cast<void*>(at), .bytes = bytes, .stream = stream});
  }
}

absl::Status Engine::CheckInvariants() const {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = large_.CheckInvariants(); !status.ok()) return status;
  std::deque<PlainMutexLock> locks;
  for (const SmallShard& shard : shards_) locks.emplace_back(&shard.mutex);
  uint64_t small_bytes = 0, small_free = 0;
  for (const SmallShard& shard : shards_) {
    shard.mutex.AssertHeld();
    if (absl::Status status = shard.heap.CheckInvariants(); !status.ok()) return status;
    small_bytes += shard.heap.total_bytes();
    small_free += shard.heap.free_bytes();
    for (const Chunk* range : shard.unused) {
      if (range->use.used_bytes > 0) return absl::InternalError("an unused range is in use");
    }
  }
  uint64_t in_segments = moving_bytes_;
  for (const auto& [at, segment] : segments_) in_segments += segment.bytes;
  const uint64_t taken =
      large_.total_bytes() - large_.free_bytes() - range_bytes_ + small_bytes - small_free;
  if (in_segments != reserved_bytes_ || large_.total_bytes() + moving_bytes_ != reserved_bytes_ ||
      small_bytes != range_bytes_ || taken != taken_bytes_.value()) {
    return absl::InternalError("the pool's totals are wrong");
  }
  if (!growing_ && moving_bytes_ > 0)
    return absl::InternalError("segments are missing after a move");
  return absl::OkStatus();
}

}  // namespace gpumem::internal
