// SPDX-License-Identifier: Apache-2.0
// How the pool leases segments and gives them back.
#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/pool/engine.h"
#include "client/pool/size_class.h"
#include "common/bytes.h"

namespace gpumem::internal {
namespace {

constexpr absl::Duration kDisturbEvery = absl::Milliseconds(200);
constexpr absl::Duration kMostReleaseWait = absl::Seconds(1);
constexpr uint64_t kMostAtOnce = uint64_t{256} << 20;
constexpr uint64_t kUsualSegment = uint64_t{64} << 20;
constexpr uint64_t kFewSegments = 16;
// The approximate maximum of a pool's segments, and the maximum that one call to the daemon leases.
constexpr uint64_t kManySegments = 512;
constexpr uint64_t kMostInOneCall = 128;

// For sizes that AllocateFromHeaps has checked for overflow.
uint64_t RoundUp(uint64_t bytes, uint64_t granule) {
  return gpumem::RoundUp(bytes, granule).value();
}

}  // namespace

absl::Status Engine::Grow(uint64_t bytes, const Timeline* timeline) {
  if (growing_) {  // another thread grows: that may suffice
    const auto grown = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !growing_; };
    mutex_.Await(absl::Condition(&grown));
    return absl::OkStatus();
  }
  bytes = RoundUp(std::max(bytes, kSmallRange), source_->granularity());
  growing_ = true;
  const uint64_t needed = std::max(needed_peak_, taken_bytes_.value() + bytes);
  const uint64_t enough = std::min(limit_, spare_.Enough(needed));
  absl::Status grown;
  // Only whole segments can be moved later. If memory is short, moves all that are free before it
  // leases any more, and leases only the missing bytes.
  for (bool is_short = !source_->places();; is_short = true) {
    Place place =
        FindPlace(bytes, timeline, is_short ? source_->granularity() : SegmentBytes(bytes));
    if (source_->places() && bytes <= limit_ &&
        (is_short || reserved_bytes_ + place.missing > enough)) {
      FillPlace(place);
    }
    grown = LeaseFor(place, bytes, /*wish=*/!is_short);
    // A daemon refuses a segment above the device's capacity as invalid. The whole units of the
    // place may be above it, though the block is not.
    const bool too_much = absl::IsResourceExhausted(grown) ||
                          (absl::IsInvalidArgument(grown) && place.missing > bytes);
    if (is_short || !too_much) break;
    LeaseNoSpares();
  }
  if (grown.ok()) needed_peak_ = std::max(needed_peak_, needed);
  growing_ = false;
  return grown;
}

absl::Status Engine::LeaseFor(const Place& place, uint64_t bytes, bool wish) {
  if (place.missing > 0 && place.holes.empty()) return Lease(bytes, UINT64_MAX, 0, wish);
  for (const Hole& hole : place.holes) {
    const uint64_t room = &hole == &place.holes.back() ? place.room : 0;
    absl::Status leased = Lease(hole.bytes, hole.bytes + room, hole.at, wish);
    // The addresses are taken: leases all of it elsewhere.
    if (absl::IsFailedPrecondition(leased)) return Lease(bytes, UINT64_MAX, 0, wish);
    if (!leased.ok()) return leased;
  }
  return absl::OkStatus();
}

uint64_t Engine::SegmentBytes(uint64_t wanted) const {
  const uint64_t all = std::max(reserved_bytes_, wanted);
  uint64_t bytes = RoundUp(std::max<uint64_t>(1, options_.grow_bytes), source_->granularity());
  while (bytes < std::min(kUsualSegment, all / kFewSegments)) bytes *= 2;
  while (bytes < all / kManySegments) bytes *= 2;
  return bytes;
}

absl::Status Engine::Lease(uint64_t bytes, uint64_t most, uintptr_t at, bool wish) {
  const uint64_t room = limit_ - std::min(limit_, reserved_bytes_);
  if (bytes > room) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the pool has leased ", gpumem::FormatBytes(reserved_bytes_), ", uses ",
        gpumem::FormatBytes(taken_bytes_.value()), ", and may lease ", gpumem::FormatBytes(limit_),
        " (its limit); it needs ", gpumem::FormatBytes(bytes),
        " more in one piece: free blocks, or raise the limit"));
  }
  most = std::min(most, room);
  const Pieces pieces = Cut(bytes, most);
  mutex_.Unlock();
  const bool more = pieces.each != bytes || pieces.count > 1;
  auto ranges = source_->Acquire(pieces.each, pieces.count, at, wish || more);
  // Leasing more than needed, or several segments, is optional.
  const bool denied = more && (absl::IsResourceExhausted(ranges.status()) ||
                               absl::IsInvalidArgument(ranges.status()));
  if (denied) ranges = source_->Acquire(bytes, 1, at, wish);
  mutex_.Lock();
  if (denied) forecast_.Stop();
  if (!ranges.ok()) return ranges.status();
  Adopt(*ranges);
  for (const SegmentSource::Range& range : *ranges) forecast_.Grew(range.bytes);
  return absl::OkStatus();
}

Engine::Pieces Engine::Cut(uint64_t bytes, uint64_t most) {
  const uint64_t granule = source_->granularity();
  // Only whole segments can be moved.
  uint64_t unit = SegmentBytes(bytes);
  uint64_t wished = std::max(unit, std::min(kMostAtOnce, reserved_bytes_ / 32));
  if (source_->places()) {
    const uint64_t step =
        forecast_.Step(counts_.allocations, taken_bytes_.value() + bytes, reserved_bytes_);
    while (unit < step / GrowthForecast::kSegments) unit *= 2;
    wished = std::max({wished, unit, step / unit * unit});
  }
  wished = std::max(bytes, RoundUp(wished, granule));
  const uint64_t part = RoundUp(std::max(unit, wished / kMostInOneCall), unit);
  if (!source_->places() || (wished - 1) / part >= most / part) {
    return {.each = std::max(bytes, std::min(wished, most / granule * granule)), .count = 1};
  }
  return {.each = part, .count = (wished - 1) / part + 1};
}

void Engine::LeaseNoSpares() {
  forecast_.Stop();
  spare_.Reset();
}

void Engine::Adopt(absl::Span<const SegmentSource::Range> ranges) {
  for (const SegmentSource::Range& range : ranges) {
    segments_[range.at] = {range.id, range.bytes};
    reserved_bytes_ += range.bytes;
    large_.AddRange(range.at, range.bytes);
    Tell(PoolEvent::What::kGrow, range.at, range.bytes, nullptr);
  }
  counts_.growths += ranges.size();
  counts_.reserved_peak_bytes = std::max(counts_.reserved_peak_bytes, reserved_bytes_);
}

std::vector<std::pair<uintptr_t, Chunk*>> Engine::FreeSegments() const {
  std::vector<std::pair<uintptr_t, Chunk*>> segments;
  for (Chunk* chunk : large_.CleanChunks(source_->granularity())) {
    for (auto it = segments_.lower_bound(chunk->at);
         it != segments_.end() && it->first + it->second.bytes <= chunk->at + chunk->bytes; ++it) {
      segments.emplace_back(it->first, chunk);
    }
  }
  std::sort(segments.rbegin(), segments.rend());
  return segments;
}

std::vector<Engine::Segment> Engine::Shrink(uint64_t keep_bytes, uint64_t enough_bytes,
                                            Polled polled) {
  if (stage_ == Stage::kMoving) return {};
  PollAll(nullptr, polled);
  std::vector<Segment> released;
  uint64_t released_bytes = 0;
  for (const auto& [at, chunk] : FreeSegments()) {
    if (released_bytes >= enough_bytes) break;
    const auto it = segments_.find(at);
    const Segment segment = it->second;
    // At least the segment's bytes: a shard's taken bytes are at most those of its ranges.
    const uint64_t unused = reserved_bytes_ - taken_bytes_.value();
    if (unused - segment.bytes < keep_bytes) continue;
    large_.RemoveRange(chunk, at, segment.bytes);
    reserved_bytes_ -= segment.bytes;
    segments_.erase(it);
    Tell(PoolEvent::What::kShrink, at, segment.bytes, nullptr);
    released.push_back(segment);
    released_bytes += segment.bytes;
  }
  releasing_bytes_ += released_bytes;
  return released;
}

absl::StatusOr<uint64_t> Engine::ReleaseAll(const std::vector<Segment>& segments) {
  uint64_t bytes = 0;
  absl::Status first;
  for (const Segment& segment : segments) {
    bytes += segment.bytes;
    first.Update(source_->Release(segment.id));
  }
  if (bytes > 0) {
    absl::MutexLock lock(&mutex_);
    releasing_bytes_ -= bytes;
  }
  if (!first.ok()) return first;
  return bytes;
}

void Engine::AwaitReleases() {
  const auto none = [this]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return releasing_bytes_ == 0; };
  mutex_.AwaitWithTimeout(absl::Condition(&none), kMostReleaseWait);
}

absl::StatusOr<uint64_t> Engine::Trim(uint64_t keep_bytes) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  CollectKept(nullptr, /*forget=*/false);
  return ReleaseFree(keep_bytes);
}

absl::StatusOr<uint64_t> Engine::ReleaseFree(uint64_t keep_bytes) {
  std::vector<Segment> released;
  uint64_t by_others = 0;
  {
    absl::MutexLock lock(&mutex_);
    by_others = releasing_bytes_;
    released = Shrink(keep_bytes);
  }
  absl::StatusOr<uint64_t> bytes = ReleaseAll(released);
  if (by_others == 0 || !bytes.ok()) return bytes;
  absl::MutexLock lock(&mutex_);
  AwaitReleases();
  return *bytes + by_others;
}

uint64_t Engine::GiveFree(uint64_t bytes, Polled polled) {
  std::vector<Segment> released;
  uint64_t given = 0;
  {
    absl::MutexLock lock(&mutex_);
    LeaseNoSpares();
    released = Shrink(0, bytes, polled);
    for (const Segment& segment : released) given += segment.bytes;
    counts_.given_under_pressure_bytes += given;
  }
  ReleaseAll(released).IgnoreError();
  return given;
}

void Engine::GiveBack(uint64_t bytes, absl::Time deadline) {
  if (!CheckProcess().ok() || absl::Now() >= deadline) return;
  const uint64_t given = GiveFree(bytes, Polled::kMost);
  if (given >= bytes || absl::Now() >= deadline) return;
  {
    // The memory is for another session. It disturbs threads, and makes streams wait for each
    // other's events, only if that may help, and not repeatedly.
    absl::MutexLock lock(&mutex_);
    const absl::Time now = absl::Now();
    if (reserved_bytes_ - taken_bytes_.value() + KeptBytes() < source_->granularity() ||
        (now > disturbed_ && now < disturbed_ + kDisturbEvery)) {
      return;
    }
    disturbed_ = now;
  }
  CollectKept(nullptr, /*forget=*/false);
  GiveFree(bytes - given, Polled::kAll);
}

absl::Status Engine::WaitForOwners(Timeline* only) {
  absl::Status first;  // the first error; the others are still waited for
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
  return first;
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
  const absl::Status waited = WaitForOwners(only);
  absl::StatusOr<uint64_t> bytes = ReleaseFree(0);
  if (!waited.ok()) return waited;
  return bytes;
}

bool Engine::HasAny(absl::Span<const uint64_t> ids) const {
  if (!CheckProcess().ok()) return false;
  absl::MutexLock lock(&mutex_);
  return std::any_of(segments_.begin(), segments_.end(), [ids](const auto& entry) {
    return std::find(ids.begin(), ids.end(), entry.second.id) != ids.end();
  });
}

void Engine::GiveAll() {
  if (!CheckProcess().ok()) return;
  caching_ = false;
  SetThreshold(0);
  FreeAllBlocks(std::nullopt).IgnoreError();
}

absl::StatusOr<BlockTicket> Engine::Share(void* data) {
  const absl::StatusOr<Block> block = Find(data);
  if (!block.ok()) return absl::InvalidArgumentError(block.status().message());
  const auto at = reinterpret_cast<uintptr_t>(data);
  BlockTicket ticket = {.bytes = block->bytes};
  std::vector<uint64_t> ids;
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ != Stage::kRunning) return SuspendedError();
    ++sharing_;
    auto segment = std::prev(segments_.upper_bound(at));
    ticket.offset = at - segment->first;
    for (; segment != segments_.end() && segment->first < at + block->bytes; ++segment) {
      ids.push_back(segment->second.id);
    }
  }
  const absl::Cleanup done = [this] {
    absl::MutexLock lock(&mutex_);
    --sharing_;
  };
  // The caller owns the block, so its segments stay.
  for (uint64_t id : ids) {
    absl::StatusOr<std::string> text = source_->Share(id);
    if (!text.ok()) return text.status();
    ticket.segments.push_back(*std::move(text));
  }
  return ticket;
}

absl::StatusOr<Timeline*> Engine::Known(Stream stream) {
  stream = Named(stream);
  if (!IsFree(stream)) [[unlikely]] {
    if (absl::Status status = ExplainCapture(stream); !status.ok()) return status;
  }
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
  stream = Named(stream);
  if (!IsFree(stream)) {
    if (absl::Status status = ExplainCapture(stream); !status.ok()) return status;
  }
  Timeline* timeline = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    timeline = order_.Find(stream);
  }
  // A program may destroy many streams that it has never used here.
  if (timeline == nullptr) return absl::OkStatus();
  CollectKept(timeline, /*forget=*/true);
  absl::MutexLock lock(&mutex_);
  return order_.Forget(timeline);
}

}  // namespace gpumem::internal
