// SPDX-License-Identifier: Apache-2.0
#include "client/pool/stream_order.h"

#include <algorithm>

namespace gpumem::internal {
namespace {

// Returns the number of the calling thread; it is never reused (unlike std::thread::id).
uint64_t ThreadNumber() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t number = ++last;
  return number;
}

// A stream, and the thread that has it as its per-thread default stream.
std::pair<Stream, uint64_t> KeyOf(Stream stream) {
  if (stream == nullptr) stream = LegacyStream();
  return {stream, stream == PerThreadStream() ? ThreadNumber() : 0};
}

}  // namespace

StreamOrder::~StreamOrder() {
  for (const auto& timeline : timelines_) {
    for (const Timeline::Recorded& recorded : timeline->recorded_) api_->Drop(recorded.event);
  }
}

absl::StatusOr<Timeline*> StreamOrder::Get(Stream stream) {
  const std::pair<Stream, uint64_t> key = KeyOf(stream);
  if (auto found = by_stream_.find(key); found != by_stream_.end()) return found->second;
  absl::StatusOr<bool> blocking = stream == AnyStream() ? false : api_->IsBlocking(key.first);
  if (!blocking.ok()) return blocking.status();
  auto timeline = std::make_unique<Timeline>();
  timeline->stream_ = key.first;
  timeline->thread_ = key.second;
  timeline->blocking_ = *blocking;
  Timeline* const made = timeline.get();
  timelines_.push_back(std::move(timeline));
  by_stream_[key] = made;
  return made;
}

Timeline* StreamOrder::Find(Stream stream) const {
  const auto found = by_stream_.find(KeyOf(stream));
  return found == by_stream_.end() ? nullptr : found->second;
}

uint64_t StreamOrder::Bound(const Timeline* by, const Timeline* of) const {
  if (by == of) return UINT64_MAX;
  if (by->stream_ == AnyStream()) return 0;
  const auto known = by->known_.find(of);
  return std::max(Done(of), known == by->known_.end() ? 0 : known->second);
}

absl::StatusOr<Timeline::Recorded> StreamOrder::Record(Timeline* of) {
  // The epoch ends before the event is recorded: a thread that still frees in it has submitted its
  // work.
  const uint64_t epoch = of->epoch_.fetch_add(1, std::memory_order_acq_rel);
  // Only a thread itself can name its per-thread default stream. Other threads use the legacy
  // stream, whose work comes after that of all such streams.
  absl::StatusOr<StreamApi::EventHandle> event =
      api_->Record(IsBarrier(of) ? LegacyStream() : of->stream_);
  if (!event.ok()) return event.status();
  return Timeline::Recorded{epoch, *event};
}

void StreamOrder::Settle(Timeline* of) {
  while (!of->recorded_.empty()) {
    const Timeline::Recorded& oldest = of->recorded_.front();
    const absl::StatusOr<bool> done = api_->Done(oldest.event);
    if (done.ok() && !*done) return;
    // An error means a capture that began meanwhile, or a context that is gone. The epoch does not
    // count as done; another event is recorded unless the stream is forgotten.
    if (done.ok()) of->done_ = std::max(Done(of), oldest.epoch);
    api_->Drop(oldest.event);
    of->recorded_.pop_front();
  }
}

bool StreamOrder::IsBarrier(const Timeline* of) {
  return of->stream_ == LegacyStream() ||
         (of->stream_ == PerThreadStream() && of->thread_ != ThreadNumber());
}

uint64_t StreamOrder::Poll(Timeline* of) {
  Settle(of);
  if (of->recorded_.empty() && Done(of) < of->latest_freed_ && !of->forgotten_) {
    if (absl::StatusOr<Timeline::Recorded> recorded = Record(of); recorded.ok()) {
      of->recorded_.push_back(*recorded);
      Settle(of);
    }
  }
  return Done(of);
}

bool StreamOrder::Coupled(const Timeline* one, const Timeline* other) {
  const bool legacy = one->stream_ == LegacyStream() || other->stream_ == LegacyStream();
  return legacy && one->blocking_ && other->blocking_ && !one->forgotten_ && !other->forgotten_;
}

absl::StatusOr<uint64_t> StreamOrder::MakeWait(Timeline* by, Timeline* of) {
  if (by->stream_ == AnyStream()) {
    return absl::FailedPreconditionError("there is no stream that could be made to wait");
  }
  if (of->forgotten_) {
    if (of->recorded_.empty()) return Done(of);
    const Timeline::Recorded last = of->recorded_.back();
    if (absl::Status status = api_->Wait(by->stream_, last.event); !status.ok()) return status;
    return by->known_[of] = last.epoch;
  }
  absl::StatusOr<Timeline::Recorded> recorded = Record(of);
  if (!recorded.ok()) return recorded.status();
  of->recorded_.push_back(*recorded);
  if (absl::Status status = api_->Wait(by->stream_, recorded->event); !status.ok()) return status;
  by->known_[of] = recorded->epoch;
  for (const auto& [other, epoch] : of->known_) {
    uint64_t& known = by->known_[other];
    known = std::max(known, epoch);
  }
  return recorded->epoch;
}

void StreamOrder::Waits(Timeline* by, Timeline* of) {
  if (by == of) return;
  by->known_[of] = of->epoch_.fetch_add(1, std::memory_order_acq_rel);
  for (const auto& [other, epoch] : of->known_) {
    uint64_t& known = by->known_[other];
    known = std::max(known, epoch);
  }
}

absl::StatusOr<std::optional<StreamApi::EventHandle>> StreamOrder::LastEvent(Timeline* of) {
  if (!of->forgotten_) {
    absl::StatusOr<Timeline::Recorded> recorded = Record(of);
    if (!recorded.ok()) return recorded.status();
    of->recorded_.push_back(*recorded);
  }
  Settle(of);
  if (of->recorded_.empty()) return std::nullopt;
  return of->recorded_.back().event;
}

absl::Status StreamOrder::Forget(Timeline* timeline) {
  absl::StatusOr<Timeline::Recorded> recorded = Record(timeline);
  if (!recorded.ok()) return recorded.status();
  timeline->recorded_.push_back(*recorded);
  timeline->forgotten_ = true;
  absl::erase_if(by_stream_, [timeline](const auto& entry) { return entry.second == timeline; });
  return absl::OkStatus();
}

}  // namespace gpumem::internal
