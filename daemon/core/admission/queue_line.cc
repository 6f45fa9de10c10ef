// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/queue_line.h"

#include <algorithm>

#include "daemon/core/admission/standing.h"

namespace gpumemd {
namespace {

// Entries in a chunk. With some thousands of waiters there are about as many chunks.
constexpr size_t kChunk = 64;

bool Earlier(const std::pair<QueuePlace, QueueLine::Entry>& entry, const QueuePlace& place) {
  return entry.first < place;
}

}  // namespace

void QueueLine::Summary::Append(const Summary& next) {
  least_use = std::min(least_use, Plus(sums.asked, next.least_use));
  least_need = std::min(least_need, Plus(sums.need, next.least_need));
  if (next.most_room > 0) most_room = std::max(most_room, Plus(sums.asked, next.most_room));
  sums.asked += next.sums.asked;  // each at most a device's capacity
  sums.need += next.sums.need;
  sums.plain_need += next.sums.plain_need;
}

bool QueueLine::Summary::MayWake(const Sums& before, const Left& left) const {
  return Plus(before.asked, least_use) <= left.use || Plus(before.need, least_need) <= left.need ||
         (most_room > 0 && Plus(before.asked, most_room) > left.room);
}

QueueLine::Summary QueueLine::Of(const Entry& entry) {
  Summary summary;
  if (entry.claims) summary.sums = {entry.asked, entry.need, entry.plain_need};
  if (entry.asleep == Asleep::kByUse) summary.least_use = entry.asked;
  if (entry.asleep == Asleep::kByNeed) summary.least_need = entry.need;
  if (entry.asleep == Asleep::kWithRoom) summary.most_room = entry.asked;
  return summary;
}

size_t QueueLine::ChunkOf(const QueuePlace& place) const {
  auto it = std::lower_bound(chunks_.begin(), chunks_.end(), place,
                             [](const Chunk& chunk, const QueuePlace& wanted) {
                               return chunk.entries.back().first < wanted;
                             });
  if (it == chunks_.end()) --it;
  return static_cast<size_t>(it - chunks_.begin());
}

void QueueLine::SumUp(Chunk& chunk) {
  chunk.summary = {};
  for (const auto& [place, entry] : chunk.entries) chunk.summary.Append(Of(entry));
  all_ = {};
  for (const Chunk& each : chunks_) all_.Append(each.summary);
}

bool QueueLine::Set(const QueuePlace& place, const Entry& entry) {
  if (chunks_.empty()) chunks_.emplace_back();
  const size_t index = chunks_[0].entries.empty() ? 0 : ChunkOf(place);
  Chunk* chunk = &chunks_[index];
  auto it = std::lower_bound(chunk->entries.begin(), chunk->entries.end(), place, Earlier);
  if (it != chunk->entries.end() && it->first == place) {
    if (it->second == entry) return false;
    const bool claims_more_or_less = !(Of(it->second).sums == Of(entry).sums);
    it->second = entry;
    SumUp(*chunk);
    return claims_more_or_less;
  }
  chunk->entries.insert(it, {place, entry});
  ++size_;
  if (chunk->entries.size() > 2 * kChunk) {
    Chunk second;
    const auto half = chunk->entries.begin() + kChunk;
    second.entries.assign(half, chunk->entries.end());
    chunk->entries.erase(half, chunk->entries.end());
    chunks_.insert(chunks_.begin() + static_cast<ptrdiff_t>(index) + 1, std::move(second));
    SumUp(chunks_[index + 1]);
    chunk = &chunks_[index];
  }
  SumUp(*chunk);
  return entry.claims;
}

std::optional<QueueLine::Entry> QueueLine::Take(const QueuePlace& place) {
  if (chunks_.empty()) return std::nullopt;
  size_t index = ChunkOf(place);
  auto& entries = chunks_[index].entries;
  auto it = std::lower_bound(entries.begin(), entries.end(), place, Earlier);
  if (it == entries.end() || !(it->first == place)) return std::nullopt;
  const Entry taken = it->second;
  entries.erase(it);
  --size_;
  // Merges small neighbours, so that there are not many chunks with few entries each.
  if (index > 0 && entries.size() + chunks_[index - 1].entries.size() <= kChunk) {
    auto& before = chunks_[index - 1].entries;
    before.insert(before.end(), entries.begin(), entries.end());
    chunks_.erase(chunks_.begin() + static_cast<ptrdiff_t>(index--));
  } else if (entries.empty()) {
    chunks_.erase(chunks_.begin() + static_cast<ptrdiff_t>(index));
    index = 0;
  }
  if (chunks_.empty()) {
    all_ = {};
  } else {
    SumUp(chunks_[index]);
  }
  return taken;
}

const QueueLine::Entry* QueueLine::Find(const QueuePlace& place) const {
  if (chunks_.empty()) return nullptr;
  const auto& entries = chunks_[ChunkOf(place)].entries;
  auto it = std::lower_bound(entries.begin(), entries.end(), place, Earlier);
  return it == entries.end() || !(it->first == place) ? nullptr : &it->second;
}

QueueLine::Sums QueueLine::Before(const QueuePlace& place) const {
  Summary before;
  for (const Chunk& chunk : chunks_) {
    if (chunk.entries.back().first < place) {
      before.Append(chunk.summary);
      continue;
    }
    for (const auto& [each, entry] : chunk.entries) {
      if (!(each < place)) break;
      before.Append(Of(entry));
    }
    break;
  }
  return before.sums;
}

std::optional<QueuePlace> QueueLine::FirstAwake(const std::optional<QueuePlace>& after,
                                                const Left& left) const {
  if (!all_.MayWake({}, left)) return std::nullopt;
  Summary before;
  for (const Chunk& chunk : chunks_) {
    const bool behind = !after || *after < chunk.entries.back().first;
    if (!behind || !chunk.summary.MayWake(before.sums, left)) {
      before.Append(chunk.summary);
      continue;
    }
    for (const auto& [place, entry] : chunk.entries) {
      const Summary one = Of(entry);
      if ((!after || *after < place) && one.MayWake(before.sums, left)) return place;
      before.Append(one);
    }
  }
  return std::nullopt;
}

}  // namespace gpumemd
