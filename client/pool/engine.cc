// SPDX-License-Identifier: Apache-2.0
// Thread caches, and the calls that they serve.
#include "client/pool/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/pool/size_class.h"
#include "common/fork_count.h"

namespace gpumem::internal {
namespace {

std::atomic<uint64_t> next_pool{1};

}  // namespace

// One thread's caches, of all pools.
struct ThreadCaches {
  struct One {
    uint64_t pool;
    std::shared_ptr<ThreadCache> cache;
    std::shared_ptr<Engine::Link> link;
    uint64_t forks;  // of the pool's process
  };
  std::vector<One> all;

  ~ThreadCaches();
};

namespace {

thread_local ThreadCaches caches_of_thread;
// The last used cache, to skip the search; and a flag that the thread has ended, when only
// destructors of static objects can still call.
[[gnu::tls_model("initial-exec")]] thread_local ThreadCache* last_cache = nullptr;
[[gnu::tls_model("initial-exec")]] thread_local uint64_t last_pool = 0;
[[gnu::tls_model("initial-exec")]] thread_local bool thread_over = false;

absl::Status NotABlock(uintptr_t at) {
  return absl::InvalidArgumentError(absl::StrCat("no block of this pool begins at address 0x",
                                                 absl::Hex(at),
                                                 "; it may have been freed already"));
}

}  // namespace

ThreadCaches::~ThreadCaches() {
  thread_over = true;
  last_pool = 0;
  for (One& one : all) {
    if (one.forks != KnownForkCount()) continue;
    absl::MutexLock lock(&one.link->mutex);
    if (one.link->engine != nullptr) one.link->engine->TakeOver(*one.cache);
  }
}

ThreadCache* Engine::KnownCacheOfThisThread() const {
  if (last_pool == id_) return last_cache;
  if (thread_over) return nullptr;
  for (const ThreadCaches::One& one : caches_of_thread.all) {
    if (one.pool != id_) continue;
    last_pool = id_;
    return last_cache = one.cache.get();
  }
  return nullptr;
}

ThreadCache* Engine::CacheOfThisThread() {
  if (ThreadCache* const known = KnownCacheOfThisThread()) return known;
  if (thread_over) return nullptr;
  auto& all = caches_of_thread.all;
  // Entries of destroyed pools are removed here.
  std::erase_if(all, [this](const ThreadCaches::One& one) {
    if (one.forks != forks_) return false;  // the parent owns its lock
    absl::MutexLock lock(&one.link->mutex);
    return one.link->engine == nullptr;
  });
  std::shared_ptr<ThreadCache> cache;
  {
    absl::MutexLock lock(&caches_mutex_);
    // The shard that the fewest threads prefer.
    std::array<size_t, kShards> threads{};
    for (const auto& one : caches_) ++threads[one->shard];
    const size_t shard = std::min_element(threads.begin(), threads.end()) - threads.begin();
    cache = std::make_shared<ThreadCache>(shard);
    used_shards_ = std::max(used_shards_.load(), shard + 1);
    taken_bytes_.Use(used_shards_);
    caches_.push_back(cache);
  }
  all.push_back({id_, cache, link_, forks_});
  last_pool = id_;
  return last_cache = cache.get();
}

Block Engine::AllocateFromCache(ThreadCache* cache, uint64_t bytes, Stream stream, int larger) {
  if (cache == nullptr) return {};
  const std::lock_guard<OwnerLock> lock(cache->lock);
  KeptBlocks* const kept = cache->Find(stream);
  return kept == nullptr ? Block{} : TakeKept(*cache, *kept, bytes, larger);
}

Block Engine::TakeKept(ThreadCache& cache, KeptBlocks& kept, uint64_t bytes, int larger) {
  Chunk* chunk = nullptr;
  if (bytes <= kMaxSmallBytes) {
    int size_class = SizeClassOf(bytes);
    const int last = std::min(size_class + larger, kSizeClasses - 1);
    while (size_class < last && kept.small[size_class].first == nullptr) ++size_class;
    KeptBlocks::Class& list = kept.small[size_class];
    chunk = list.first;
    if (chunk == nullptr) return {};
    list.first = chunk->use.next;
    --list.count;
    cache.kept_small_bytes -= chunk->bytes;
  } else {
    const uint64_t rounded = RoundedBytes(bytes);
    for (KeptBlocks::Large& slot : kept.large) {
      if (slot.bytes != rounded) continue;
      chunk = slot.chunk;
      slot = {};
      break;
    }
    if (chunk == nullptr) return {};
  }
  chunk->use.live = true;
  cache.kept_bytes.Subtract(chunk->bytes);
  cache.kept_blocks.Subtract(1);
  cache.allocations.Add(1);
  return {.data = reinterpret_cast<void*>(chunk->at), .bytes = chunk->bytes};
}

// True if Keep() would spill nothing.
bool Engine::HasRoom(const ThreadCache& cache, const KeptBlocks& kept, const Chunk& chunk) const {
  if (chunk.use.small) {
    return kept.small[chunk.use.size_class].count < ThreadCache::Limit(chunk.use.size_class) &&
           cache.kept_small_bytes + chunk.bytes <= ThreadCache::kMostSmallBytes;
  }
  return !releases_.load(std::memory_order_relaxed) &&
         std::any_of(kept.large.begin(), kept.large.end(),
                     [](const KeptBlocks::Large& slot) { return slot.chunk == nullptr; });
}

void Engine::Keep(ThreadCache& cache, KeptBlocks& kept, Chunk* chunk,
                  std::vector<Chunk*>& spilled) {
  chunk->use.live = false;
  chunk->epoch = kept.timeline->epoch();
  cache.frees.Add(1);
  cache.kept_bytes.Add(chunk->bytes);
  cache.kept_blocks.Add(1);
  if (chunk->use.small) {
    KeptBlocks::Class& list = kept.small[chunk->use.size_class];
    chunk->use.next = list.first;
    list.first = chunk;
    cache.kept_small_bytes += chunk->bytes;
    if (++list.count <= ThreadCache::Limit(chunk->use.size_class) &&
        cache.kept_small_bytes <= ThreadCache::kMostSmallBytes) {
      return;
    }
    // Keeps the half that was freed last.
    const uint32_t stays = (list.count + 1) / 2;
    Chunk* last = list.first;
    for (uint32_t i = 1; i < stays; ++i) last = last->use.next;
    for (Chunk* gone = std::exchange(last->use.next, nullptr); gone != nullptr;
         gone = gone->use.next) {
      spilled.push_back(gone);
      cache.kept_small_bytes -= gone->bytes;
    }
    list.count = stays;
  } else if (releases_.load(std::memory_order_relaxed)) {
    spilled.push_back(chunk);
  } else {
    KeptBlocks::Large* slot = nullptr;
    for (KeptBlocks::Large& one : kept.large) {
      if (one.chunk == nullptr) slot = &one;
    }
    if (slot == nullptr) {
      slot = &kept.large[kept.oldest_large++ % KeptBlocks::kLarge];
      spilled.push_back(slot->chunk);
    }
    *slot = {chunk->bytes, chunk};
  }
  CountOut(cache, spilled);
}

void Engine::CountOut(ThreadCache& cache, absl::Span<Chunk* const> chunks) {
  if (chunks.empty()) return;
  for (const Chunk* chunk : chunks) cache.kept_bytes.Subtract(chunk->bytes);
  cache.kept_blocks.Subtract(chunks.size());
  moving_.Add(chunks.size());
}

// --- The pool ------------------------------------------------------------------------

Engine::Engine(std::unique_ptr<SegmentSource> source, std::unique_ptr<StreamApi> api,
               const PoolOptions& options)
    : source_(std::move(source)),
      api_(std::move(api)),
      options_(options),
      id_(next_pool.fetch_add(1)),
      forks_(CountForks()),
      caching_(options.thread_caches),
      releases_(options.release_threshold_bytes != UINT64_MAX),
      policy_(options.reuse),
      limit_(options.limit_bytes),
      release_threshold_(options.release_threshold_bytes),
      link_(std::make_shared<Link>()) {
  absl::MutexLock lock(&link_->mutex);
  link_->engine = this;
}

Engine::~Engine() {
  if (!CheckProcess().ok()) return;
  {
    absl::MutexLock lock(&link_->mutex);
    link_->engine = nullptr;
  }
  FreeAllBlocks(std::nullopt).IgnoreError();
  std::vector<Segment> rest;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [at, segment] : segments_) {
      rest.push_back(segment);
      releasing_bytes_ += segment.bytes;
    }
    segments_.clear();
  }
  ReleaseAll(rest).IgnoreError();
}

bool Engine::IsOwnProcess() const { return KnownForkCount() == forks_; }

absl::Status Engine::CheckProcess() const {
  if (IsOwnProcess()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this pool and its memory belong to the process that forked this one; start the child "
      "process with exec, and make a pool in it");
}

Stream Engine::Named(Stream stream) const {
  if (stream != nullptr) return stream;
  return options_.per_thread_default_stream ? PerThreadStream() : LegacyStream();
}

absl::Status Engine::ExplainCapture(Stream stream) const {
  absl::Status free = api_->CheckFree(stream);
  if (!absl::IsFailedPrecondition(free)) return free;
  return absl::FailedPreconditionError(
      "the stream is being captured into a graph, and each launch of the graph would use the "
      "memory; allocate before the capture begins, and free after the graph is destroyed");
}

absl::StatusOr<Block> Engine::Allocate(uint64_t bytes, Stream stream) {
  if (!IsOwnProcess()) [[unlikely]]
    return CheckProcess();
  stream = Named(stream);
  if (!IsFree(stream)) [[unlikely]] {
    if (absl::Status status = ExplainCapture(stream); !status.ok()) return status;
  }
  if (bytes == 0) return absl::InvalidArgumentError("a block of 0 bytes cannot be allocated");
  ThreadCache* const cache = Caching() ? CacheOfThisThread() : nullptr;
  if (Block block = AllocateFromCache(cache, bytes, stream); block.data != nullptr) return block;
  if (cache != nullptr && IsSmall(bytes)) {
    if (Block block = AllocateSmall(*cache, bytes, stream); block.data != nullptr) return block;
  }
  return AllocateFromHeaps(bytes, stream);
}

Block Engine::TryAllocate(uint64_t bytes, Stream stream) {
  stream = Named(stream);
  if (!IsOwnProcess() || bytes == 0 || !Caching() || !IsFree(stream)) return {};
  return AllocateFromCache(KnownCacheOfThisThread(), bytes, stream);
}

absl::StatusOr<Block> Engine::AllocateSynchronized(uint64_t bytes) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  if (bytes == 0) return absl::InvalidArgumentError("a block of 0 bytes cannot be allocated");
  return AllocateFromHeaps(bytes, AnyStream());
}

absl::Status Engine::Free(void* data, Stream stream) {
  if (!IsOwnProcess()) [[unlikely]]
    return CheckProcess();
  stream = Named(stream);
  if (!IsFree(stream)) [[unlikely]] {
    if (absl::Status status = ExplainCapture(stream); !status.ok()) return status;
  }
  const auto at = reinterpret_cast<uintptr_t>(data);
  ThreadCache* const cache = Caching() ? CacheOfThisThread() : nullptr;
  if (cache == nullptr) return FreeUncached(at, stream, /*done=*/false);
  Kept spilled{};
  while (true) {
    {
      const std::lock_guard<OwnerLock> lock(cache->lock);
      if (KeptBlocks* const kept = cache->Find(stream)) {
        Chunk* const chunk = table_.Find(at);
        if (chunk == nullptr || !chunk->use.live) return NotABlock(at);
        Keep(*cache, *kept, chunk, spilled.chunks);
        spilled.timeline = kept->timeline;
      }
    }
    if (spilled.timeline != nullptr) break;
    // The stream is new to this thread: checks that it is valid.
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<Timeline*> known = order_.Get(stream);
    if (!known.ok()) return known.status();
    const std::lock_guard<OwnerLock> adding(cache->lock);
    cache->Add(stream, *known);
  }
  if (!spilled.chunks.empty()) PutBack(spilled.chunks, spilled.timeline, /*shrinks=*/true);
  return absl::OkStatus();
}

bool Engine::TryFree(void* data, Stream stream) {
  stream = Named(stream);
  if (!IsOwnProcess() || !Caching() || !IsFree(stream)) return false;
  ThreadCache* const cache = KnownCacheOfThisThread();
  if (cache == nullptr) return false;
  const std::lock_guard<OwnerLock> lock(cache->lock);
  KeptBlocks* const kept = cache->Find(stream);
  if (kept == nullptr) return false;
  Chunk* const chunk = table_.Find(reinterpret_cast<uintptr_t>(data));
  if (chunk == nullptr || !chunk->use.live || !HasRoom(*cache, *kept, *chunk)) return false;
  std::vector<Chunk*> spilled;
  Keep(*cache, *kept, chunk, spilled);
  return true;
}

absl::Status Engine::FreeUncached(uintptr_t at, Stream stream, bool done) {
  Chunk* chunk = nullptr;
  Timeline* timeline = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<Timeline*> known = order_.Get(stream);
    if (!known.ok()) return known.status();
    timeline = *known;
    chunk = table_.FindLocked(at);
    if (chunk == nullptr || !std::exchange(chunk->use.live, false)) return NotABlock(at);
    chunk->epoch = done ? 0 : timeline->epoch();
    ++counts_.frees;
    moving_.Add(1);
  }
  Tell(PoolEvent::What::kFree, at, chunk->bytes, stream);
  PutBack({&chunk, 1}, timeline, /*shrinks=*/true);
  return absl::OkStatus();
}

absl::Status Engine::FreeSynchronized(void* data) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const absl::StatusOr<Block> block = Find(data);
  if (!block.ok()) return NotABlock(reinterpret_cast<uintptr_t>(data));
  if (absl::Status status = api_->SynchronizeDevice(); !status.ok()) return status;
  return FreeUncached(reinterpret_cast<uintptr_t>(data), LegacyStream(), /*done=*/true);
}

absl::StatusOr<Block> Engine::Find(void* data) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const auto at = reinterpret_cast<uintptr_t>(data);
  const Chunk* const chunk = table_.FindLocked(at);
  if (chunk == nullptr || !chunk->use.live) {
    return absl::NotFoundError("no block of this pool begins at this address");
  }
  return Block{.data = data, .bytes = chunk->bytes};
}

}  // namespace gpumem::internal
