// SPDX-License-Identifier: Apache-2.0
// Collects the blocks that threads cache, and puts them back into the heaps.
#include <utility>

#include "client/pool/engine.h"

namespace gpumem::internal {
namespace {

void TakeLarge(KeptBlocks& kept, std::vector<Chunk*>& out) {
  for (KeptBlocks::Large& slot : kept.large) {
    if (slot.chunk != nullptr) out.push_back(slot.chunk);
    slot = {};
  }
}

void TakeSmall(ThreadCache& cache, KeptBlocks& kept, std::vector<Chunk*>& out) {
  for (KeptBlocks::Class& list : kept.small) {
    for (; list.first != nullptr; list.first = list.first->use.next) {
      out.push_back(list.first);
      cache.kept_small_bytes -= list.first->bytes;
    }
    list.count = 0;
  }
}

}  // namespace

std::vector<std::shared_ptr<ThreadCache>> Engine::Caches() const {
  absl::MutexLock lock(&caches_mutex_);
  return caches_;
}

void Engine::TakeKeptOf(ThreadCache& cache, const Timeline* timeline, std::vector<Kept>& out) {
  for (const auto& kept : cache.kept) {
    if (timeline != nullptr && kept->timeline != timeline) continue;
    Kept one{kept->timeline, {}};
    TakeSmall(cache, *kept, one.chunks);
    TakeLarge(*kept, one.chunks);
    CountOut(cache, one.chunks);
    if (!one.chunks.empty()) out.push_back(std::move(one));
  }
}

void Engine::PutBack(const std::vector<Kept>& all, bool shrinks) {
  for (const Kept& one : all) PutBack(one.chunks, one.timeline, shrinks);
}

void Engine::CollectKept(const Timeline* timeline, bool forget) {
  std::vector<std::shared_ptr<ThreadCache>> caches = Caches();
  if (!forget) {
    std::erase_if(caches, [](const auto& cache) { return cache->kept_bytes.value() == 0; });
  }
  std::vector<OwnerLock*> locks;
  for (const auto& cache : caches) locks.push_back(&cache->lock);
  std::vector<Kept> collected;
  {
    const OwnerLock::Visit visit(std::move(locks));
    for (const auto& cache : caches) {
      TakeKeptOf(*cache, timeline, collected);
      if (forget) cache->Forget(timeline);
    }
  }
  PutBack(collected, /*shrinks=*/false);
}

void Engine::CollectOwn() {
  ThreadCache* const cache = Caching() ? CacheOfThisThread() : nullptr;
  if (cache == nullptr || cache->kept_bytes.value() == 0) return;
  std::vector<Kept> collected;
  {
    const std::lock_guard<OwnerLock> lock(cache->lock);
    TakeKeptOf(*cache, nullptr, collected);
  }
  PutBack(collected, /*shrinks=*/false);
}

void Engine::CollectOwnLarge(Stream stream) {
  ThreadCache* const cache = Caching() ? CacheOfThisThread() : nullptr;
  if (cache == nullptr) return;
  Kept one{};
  {
    const std::lock_guard<OwnerLock> lock(cache->lock);
    KeptBlocks* const kept = cache->Find(stream);
    if (kept == nullptr) return;
    one.timeline = kept->timeline;
    TakeLarge(*kept, one.chunks);
    if (cache->kept_small_bytes > ThreadCache::kModestSmallBytes) {
      TakeSmall(*cache, *kept, one.chunks);
    }
    CountOut(*cache, one.chunks);
  }
  if (!one.chunks.empty()) PutBack(one.chunks, one.timeline, /*shrinks=*/false);
}

void Engine::TakeOver(ThreadCache& cache) {
  std::vector<Kept> collected;
  {
    const std::lock_guard<OwnerLock> lock(cache.lock);
    TakeKeptOf(cache, nullptr, collected);
  }
  PutBack(collected, /*shrinks=*/true);
  absl::MutexLock lock(&mutex_);
  counts_.allocations += cache.allocations.value();
  counts_.frees += cache.frees.value();
  absl::MutexLock listed(&caches_mutex_);
  std::erase_if(caches_, [&cache](const auto& one) { return one.get() == &cache; });
}

uint64_t Engine::KeptBytes() const {
  absl::MutexLock lock(&caches_mutex_);
  uint64_t bytes = 0;
  for (const auto& cache : caches_) bytes += cache->kept_bytes.value();
  return bytes;
}

}  // namespace gpumem::internal
