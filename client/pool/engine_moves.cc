// SPDX-License-Identifier: Apache-2.0
// Moves whole free segments to where a block lacks memory. They are unmapped, and mapped beside
// free memory so that they form a run that is large enough. Copies nothing, and does not call the
// daemon.
#include <algorithm>
#include <utility>

#include "client/pool/engine.h"

namespace gpumem::internal {

std::vector<std::vector<Engine::Stretch>> Engine::Vacancies(const Timeline* timeline) const {
  const auto usable = [&](const Chunk* chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return chunk != nullptr && chunk->free &&
           (chunk->freed_on == nullptr || chunk->epoch <= Followed(timeline, chunk->freed_on));
  };
  std::vector<const Chunk*> tails = large_.Tails();
  std::sort(tails.begin(), tails.end(),
            [](const Chunk* one, const Chunk* other) { return one->at < other->at; });
  std::vector<std::vector<Stretch>> vacancies;
  std::vector<Stretch> vacancy;
  uintptr_t begin = segments_.empty() ? 0 : segments_.begin()->first;
  for (const Chunk* last : tails) {
    const uintptr_t end = last->at + last->bytes;
    Stretch free = {.at = begin};
    const Chunk* chunk = large_.Head(begin);
    for (; usable(chunk); chunk = chunk->after) free.bytes += chunk->bytes;
    if (free.bytes > 0) vacancy.push_back(free);
    if (chunk != nullptr) {  // used: another vacancy begins behind it
      if (vacancy.size() > 1) vacancies.push_back(std::move(vacancy));
      vacancy.clear();
      free = {.at = end};
      for (chunk = last; usable(chunk); chunk = chunk->before) {
        free.at -= chunk->bytes;
        free.bytes += chunk->bytes;
      }
      if (free.bytes > 0) vacancy.push_back(free);
    }
    const auto next = segments_.lower_bound(end);
    begin = next == segments_.end() ? UINTPTR_MAX : next->first;
    vacancy.push_back({.at = end, .bytes = begin - end, .hole = true});
  }
  if (!vacancy.empty()) vacancies.push_back(std::move(vacancy));
  return vacancies;
}

Engine::Place Engine::PlaceIn(absl::Span<const Stretch> vacancy, uint64_t bytes, uint64_t unit,
                              bool upwards) {
  Place place;
  for (size_t i = 0; i < vacancy.size() && place.bytes < bytes; ++i) {
    const Stretch& stretch = upwards ? vacancy[i] : vacancy[vacancy.size() - 1 - i];
    uint64_t part = std::min(bytes - place.bytes, stretch.bytes);
    // In whole units, if the hole is large enough.
    if (stretch.hole) part += std::min((unit - part % unit) % unit, stretch.bytes - part);
    const uintptr_t at = upwards ? stretch.at : stretch.at + stretch.bytes - part;
    if (place.bytes == 0 || !upwards) place.at = at;
    place.bytes += part;
    place.room = upwards && stretch.hole ? stretch.bytes - part : 0;
    if (!stretch.hole) continue;
    place.missing += part;
    place.holes.insert(upwards ? place.holes.end() : place.holes.begin(), {at, part});
  }
  return place;
}

Engine::Place Engine::FindPlace(uint64_t bytes, const Timeline* timeline, uint64_t unit) const {
  Place best = {.missing = bytes};
  if (!source_->places()) return best;
  const auto consider = [&](Place place) {
    if (place.bytes < bytes) return;
    if (best.holes.empty() || place.missing < best.missing) best = std::move(place);
  };
  // The best place begins or ends with free memory, if there is any.
  for (const std::vector<Stretch>& vacancy : Vacancies(timeline)) {
    const absl::Span<const Stretch> all = vacancy;
    for (size_t i = 0; i < all.size(); ++i) {
      if (i == 0 || !all[i].hole) consider(PlaceIn(all.subspan(i), bytes, unit, /*upwards=*/true));
      if (!all[i].hole) consider(PlaceIn(all.first(i + 1), bytes, unit, /*upwards=*/false));
    }
  }
  return best;
}

std::vector<Engine::Moving> Engine::TakeForMoving(const Place& place) {
  if (policy_.allow_opportunistic) PollAll(nullptr, Polled::kAll);
  std::vector<std::pair<uintptr_t, Chunk*>> candidates = FreeSegments();
  std::erase_if(candidates, [&](const auto& candidate) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const uintptr_t at = candidate.first;
    return at < place.at + place.bytes && at + segments_.at(at).bytes > place.at;
  });
  std::vector<bool> chosen(candidates.size());
  std::vector<Moving> all;
  for (const Hole& hole : place.holes) {
    Moving& moving = all.emplace_back();
    const uint64_t most = hole.bytes + (&hole == &place.holes.back() ? place.room : 0);
    for (size_t i = 0; i < candidates.size() && moving.bytes < hole.bytes; ++i) {
      const uintptr_t at = candidates[i].first;
      const Segment& segment = segments_.at(at);
      if (chosen[i] || segment.bytes > most - moving.bytes) continue;
      chosen[i] = true;
      moving.bytes += segment.bytes;
      moving.segments.emplace_back(at, segment);
    }
    // In the order of their addresses: those that adjoin are unmapped together.
    std::reverse(moving.segments.begin(), moving.segments.end());
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!chosen[i]) continue;
    const auto [at, chunk] = candidates[i];
    const auto it = segments_.find(at);
    large_.RemoveRange(chunk, at, it->second.bytes);
    moving_bytes_ += it->second.bytes;
    segments_.erase(it);
  }
  return all;
}

void Engine::FillPlace(Place& place) {
  std::vector<Moving> all = TakeForMoving(place);
  mutex_.Unlock();
  for (size_t i = 0; i < all.size(); ++i) {
    Moving& moving = all[i];
    Hole& hole = place.holes[i];
    if (moving.segments.empty()) continue;
    std::vector<uint64_t> ids;
    for (const auto& [at, segment] : moving.segments) ids.push_back(segment.id);
    // If the driver refuses, these segments and the remaining ones stay.
    if (!source_->Move(ids, hole.at).ok()) break;
    moving.to = hole.at;
    const uint64_t filled = std::min(hole.bytes, moving.bytes);
    hole = {hole.at + moving.bytes, hole.bytes - filled};
    place.missing -= filled;
  }
  mutex_.Lock();
  for (const Moving& moving : all) {
    moving_bytes_ -= moving.bytes;
    uintptr_t to = moving.to;
    if (to != 0) spare_.Moved(counts_.allocations, moving.segments.size());
    if (to != 0) large_.AddRange(to, moving.bytes);
    for (const auto& [from, segment] : moving.segments) {
      segments_[to != 0 ? to : from] = segment;
      if (to == 0) {
        large_.AddRange(from, segment.bytes);
        continue;
      }
      ++counts_.moves;
      Tell(PoolEvent::What::kShrink, from, segment.bytes, nullptr);
      Tell(PoolEvent::What::kGrow, to, segment.bytes, nullptr);
      to += segment.bytes;
    }
  }
  // `room` is the room behind the last hole.
  if (!place.holes.empty() && place.holes.back().bytes == 0) place.room = 0;
  std::erase_if(place.holes, [](const Hole& hole) { return hole.bytes == 0; });
}

}  // namespace gpumem::internal
