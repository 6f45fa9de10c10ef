// How the pool gets segments, and gives them back; and what it says of itself.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/pool/engine.h"
#include "common/bytes.h"

namespace gpumem::internal {
namespace {

constexpr uint64_t kMostAtOnce = uint64_t{64} << 20;

// Of what AllocateFromHeaps has found not too large for that.
uint64_t RoundUp(uint64_t bytes, uint64_t granule) {
  return gpumem::RoundUp(bytes, granule).value();
}

}  // namespace

Engine::Place Engine::FindPlace(uint64_t bytes, const Timeline* timeline) const {
  const uint64_t granule = source_->granularity();
  Place best = {.need = RoundUp(bytes, granule)};
  if (!source_->places()) return best;
  for (const Chunk* last : large_.Tails()) {
    const uintptr_t end = last->at + last->bytes;
    uint64_t tail = 0;
    for (const Chunk* chunk = last;
         chunk != nullptr && chunk->free &&
         (chunk->freed_on == nullptr || chunk->epoch <= Followed(timeline, chunk->freed_on));
         chunk = chunk->before) {
      tail += chunk->bytes;
    }
    const auto next = segments_.lower_bound(end);
    const Place place = {.at = end,
                         .need = std::max(granule, RoundUp(bytes - std::min(bytes, tail), granule)),
                         .most = next == segments_.end() ? UINT64_MAX : next->first - end};
    if (place.need > place.most) continue;
    if (best.at == 0 || place.need < best.need) best = place;
  }
  return best;
}

// At the wished address, or where that is taken, anywhere: all of it then.
absl::StatusOr<SegmentSource::Range> Engine::AcquireRange(uint64_t need, uint64_t wish,
                                                          uintptr_t at) {
  absl::StatusOr<SegmentSource::Range> range = source_->Acquire(wish, at);
  // More than is needed was a wish.
  if (wish > need &&
      (absl::IsResourceExhausted(range.status()) || absl::IsInvalidArgument(range.status()))) {
    range = source_->Acquire(need, at);
  }
  return range;
}

absl::Status Engine::Grow(uint64_t bytes, const Timeline* timeline) {
  if (growing_) {  // by another thread: perhaps that is enough
    const auto grown = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !growing_; };
    mutex_.Await(absl::Condition(&grown));
    return absl::OkStatus();
  }
  const uint64_t granule = source_->granularity();
  // Small blocks come in ranges.
  bytes = std::max(bytes, uint64_t{2} << 20);
  const Place place = FindPlace(bytes, timeline);
  const uint64_t room = limit_ - std::min(limit_, reserved_bytes_);
  const auto over = [&] {
    return absl::ResourceExhaustedError(
        absl::StrCat("the pool has leased ", gpumem::FormatBytes(reserved_bytes_), ", uses ",
                     gpumem::FormatBytes(taken_bytes_), ", and may lease ",
                     gpumem::FormatBytes(limit_), " (its limit); ", gpumem::FormatBytes(bytes),
                     " in one piece are not free: free blocks, or raise the limit"));
  };
  if (place.need > room) return over();
  const uint64_t step = std::max(options_.grow_bytes, std::min(kMostAtOnce, reserved_bytes_ / 32));
  const auto wished = [&](uint64_t need, uint64_t most) {
    return std::max(need, std::min({RoundUp(step, granule), room / granule * granule, most}));
  };
  growing_ = true;
  mutex_.Unlock();
  absl::StatusOr<SegmentSource::Range> range =
      AcquireRange(place.need, wished(place.need, place.most), place.at);
  bool too_much = false;
  if (place.at != 0 && absl::IsFailedPrecondition(range.status())) {
    const uint64_t all = RoundUp(bytes, granule);
    too_much = all > room;
    if (!too_much) range = AcquireRange(all, wished(all, UINT64_MAX), 0);
  }
  mutex_.Lock();
  growing_ = false;
  if (too_much) return over();
  if (!range.ok()) return range.status();
  segments_[range->at] = {range->id, range->bytes};
  reserved_bytes_ += range->bytes;
  counts_.reserved_peak_bytes = std::max(counts_.reserved_peak_bytes, reserved_bytes_);
  ++counts_.growths;
  large_.AddRange(range->at, range->bytes);
  Tell(PoolEvent::What::kGrow, range->at, range->bytes, nullptr);
  return absl::OkStatus();
}

std::vector<Engine::Segment> Engine::Shrink(uint64_t keep_bytes, uint64_t enough_bytes) {
  PollAll(nullptr, Polled::kAll);
  // Whole segments in what is free for everybody, from the highest address down, so that what stays
  // is in one piece and what a chunk has before them stays that chunk.
  std::vector<std::pair<uintptr_t, Chunk*>> candidates;
  for (Chunk* chunk : large_.CleanChunks(source_->granularity())) {
    for (auto it = segments_.lower_bound(chunk->at);
         it != segments_.end() && it->first + it->second.bytes <= chunk->at + chunk->bytes; ++it) {
      candidates.emplace_back(it->first, chunk);
    }
  }
  std::sort(candidates.rbegin(), candidates.rend());
  std::vector<Segment> released;
  uint64_t released_bytes = 0;
  for (const auto& [at, chunk] : candidates) {
    if (released_bytes >= enough_bytes) break;
    const auto it = segments_.find(at);
    const Segment segment = it->second;
    const uint64_t unused = reserved_bytes_ - taken_bytes_;
    if (unused < segment.bytes || unused - segment.bytes < keep_bytes) continue;
    large_.RemoveRange(chunk, at, segment.bytes);
    reserved_bytes_ -= segment.bytes;
    segments_.erase(it);
    Tell(PoolEvent::What::kShrink, at, segment.bytes, nullptr);
    released.push_back(segment);
    released_bytes += segment.bytes;
  }
  return released;
}

absl::StatusOr<uint64_t> Engine::ReleaseAll(const std::vector<Segment>& segments) {
  uint64_t bytes = 0;
  absl::Status first;
  for (const Segment& segment : segments) {
    bytes += segment.bytes;
    first.Update(source_->Release(segment.id));
  }
  if (!first.ok()) return first;
  return bytes;
}

absl::StatusOr<uint64_t> Engine::Trim(uint64_t keep_bytes) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  CollectKept(nullptr, /*forget=*/false);
  std::vector<Segment> released;
  {
    absl::MutexLock lock(&mutex_);
    released = Shrink(keep_bytes);
  }
  return ReleaseAll(released);
}

void Engine::GiveBack(uint64_t bytes) {
  if (!CheckProcess().ok()) return;
  {
    absl::MutexLock lock(&mutex_);
    // Else the threads need not be disturbed.
    if (reserved_bytes_ - taken_bytes_ + KeptBytes() < source_->granularity()) return;
  }
  CollectKept(nullptr, /*forget=*/false);
  std::vector<Segment> released;
  {
    absl::MutexLock lock(&mutex_);
    released = Shrink(0, bytes);
    for (const Segment& segment : released) counts_.given_under_pressure_bytes += segment.bytes;
  }
  ReleaseAll(released).IgnoreError();
}

absl::StatusOr<uint64_t> Engine::FreeAllBlocks(std::optional<Stream> stream) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  Timeline* only = nullptr;
  if (stream) {
    absl::StatusOr<Timeline*> timeline = Known(*stream);
    if (!timeline.ok()) return timeline.status();
    only = *timeline;
  }
  CollectKept(only, /*forget=*/false);
  absl::Status first;  // whatever it is, the others are waited for
  std::vector<StreamApi::EventHandle> events;
  {
    absl::MutexLock lock(&mutex_);
    const std::vector<Timeline*> owners = only != nullptr ? std::vector<Timeline*>{only} : Owners();
    for (Timeline* owner : owners) {
      auto event = order_.LastEvent(owner);
      first.Update(event.status());
      if (event.ok() && *event) events.push_back(**event);
    }
  }
  for (StreamApi::EventHandle event : events) first.Update(api_->Synchronize(event));
  std::vector<Segment> released;
  {
    absl::MutexLock lock(&mutex_);
    released = Shrink(0);
  }
  absl::StatusOr<uint64_t> bytes = ReleaseAll(released);
  if (!first.ok()) return first;
  return bytes;
}

absl::StatusOr<BlockTicket> Engine::Share(void* data) {
  const absl::StatusOr<Block> block = Find(data);
  if (!block.ok()) return absl::InvalidArgumentError(block.status().message());
  const auto at = reinterpret_cast<uintptr_t>(data);
  BlockTicket ticket = {.bytes = block->bytes};
  std::vector<uint64_t> ids;
  {
    absl::MutexLock lock(&mutex_);
    auto segment = std::prev(segments_.upper_bound(at));
    ticket.offset = at - segment->first;
    for (; segment != segments_.end() && segment->first < at + block->bytes; ++segment) {
      ids.push_back(segment->second.id);
    }
  }
  // The block is the caller's, so its segments stay.
  for (uint64_t id : ids) {
    absl::StatusOr<std::string> text = source_->Share(id);
    if (!text.ok()) return text.status();
    ticket.segments.push_back(*std::move(text));
  }
  return ticket;
}

absl::StatusOr<Timeline*> Engine::Known(Stream stream) {
  stream = Named(stream);
  if (absl::Status status = CheckCapture(stream); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  return order_.Get(stream);
}

absl::Status Engine::StreamWaits(Stream waiting, Stream awaited) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  absl::StatusOr<Timeline*> by = Known(waiting);
  if (!by.ok()) return by.status();
  absl::StatusOr<Timeline*> of = Known(awaited);
  if (!of.ok()) return of.status();
  absl::MutexLock lock(&mutex_);
  order_.Waits(*by, *of);
  return absl::OkStatus();
}

absl::Status Engine::ForgetStream(Stream stream) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  absl::StatusOr<Timeline*> timeline = Known(stream);
  if (!timeline.ok()) return timeline.status();
  CollectKept(*timeline, /*forget=*/true);
  absl::MutexLock lock(&mutex_);
  return order_.Forget(*timeline);
}

// --- Settings and numbers ------------------------------------------------------------

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
  absl::MutexLock lock(&mutex_);
  release_threshold_ = bytes;
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
  // Threads go on meanwhile.
  stats.used_bytes = taken_bytes_ - std::min(taken_bytes_, kept_bytes);
  stats.free_bytes = stats.reserved_bytes - stats.used_bytes;
  stats.used_blocks = table_.size() - std::min<uint64_t>(table_.size(), kept_blocks);
  stats.free_blocks = large_.free_chunks() + small_.free_chunks() + kept_blocks;
  stats.segments = segments_.size();
  return stats;
}

void Engine::ResetPeaks() {
  if (!CheckProcess().ok()) return;
  absl::MutexLock lock(&mutex_);
  counts_.reserved_peak_bytes = reserved_bytes_;
  counts_.used_peak_bytes = taken_bytes_;
}

absl::StatusOr<MemInfo> Engine::MemGetInfo() {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const absl::StatusOr<std::pair<uint64_t, uint64_t>> room = source_->Room();
  if (!room.ok()) return room.status();
  const uint64_t kept = KeptBytes();
  absl::MutexLock lock(&mutex_);
  const uint64_t used = taken_bytes_ - std::min(taken_bytes_, kept);
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
  if (absl::Status status = small_.CheckInvariants(); !status.ok()) return status;
  uint64_t in_segments = 0;
  for (const auto& [at, segment] : segments_) in_segments += segment.bytes;
  const uint64_t taken = large_.total_bytes() - large_.free_bytes() - range_bytes_ +
                         small_.total_bytes() - small_.free_bytes();
  if (in_segments != reserved_bytes_ || large_.total_bytes() != reserved_bytes_ ||
      small_.total_bytes() != range_bytes_ || taken != taken_bytes_) {
    return absl::InternalError("the pool's sums are wrong");
  }
  return absl::OkStatus();
}

}  // namespace gpumem::internal
