// SPDX-License-Identifier: Apache-2.0
#include "client/pool/block_heap.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gpumem::internal {

// --- Chunks --------------------------------------------------------------------------

Chunk* BlockHeap::NewChunk() {
  if (!spare_.empty()) {
    Chunk* const chunk = spare_.back();
    spare_.pop_back();
    return chunk;
  }
  return &chunks_.emplace_back();
}

void BlockHeap::DeleteChunk(Chunk* chunk) {
  *chunk = Chunk{};
  spare_.push_back(chunk);
}

void BlockHeap::AddFree(Chunk* chunk) {
  chunk->free = true;
  chunk->use = {};
  free_[chunk->freed_on].insert({chunk->bytes, chunk->at, chunk});
  free_bytes_ += chunk->bytes;
  ++free_chunks_;
  if (chunk->before != nullptr && chunk->before->free) seams_.insert(chunk->before);
  if (chunk->after != nullptr && chunk->after->free) seams_.insert(chunk);
}

void BlockHeap::RemoveFree(Chunk* chunk) {
  auto set = free_.find(chunk->freed_on);
  set->second.erase({chunk->bytes, chunk->at, chunk});
  if (set->second.empty()) free_.erase(set);
  chunk->free = false;
  seams_.erase(chunk);
  if (chunk->before != nullptr) seams_.erase(chunk->before);
  free_bytes_ -= chunk->bytes;
  --free_chunks_;
}

void BlockHeap::Split(Chunk* chunk, uint64_t bytes) {
  Chunk* const rest = NewChunk();
  rest->at = chunk->at + bytes;
  rest->bytes = chunk->bytes - bytes;
  rest->freed_on = chunk->freed_on;
  rest->epoch = chunk->epoch;
  rest->range = chunk->range;
  rest->before = chunk;
  rest->after = chunk->after;
  chunk->bytes = bytes;
  chunk->after = rest;
  if (rest->after != nullptr) {
    rest->after->before = rest;
  } else {
    lasts_[rest->at + rest->bytes] = rest;
  }
}

void BlockHeap::Join(Chunk* chunk) {
  Chunk* const gone = chunk->after;
  chunk->bytes += gone->bytes;
  chunk->after = gone->after;
  if (chunk->after != nullptr) {
    chunk->after->before = chunk;
  } else {
    lasts_[chunk->at + chunk->bytes] = chunk;
  }
  DeleteChunk(gone);
}

// --- Ranges --------------------------------------------------------------------------

Chunk* BlockHeap::AddRange(uintptr_t at, uint64_t bytes, Timeline* freed_on, uint64_t epoch,
                           Chunk* range) {
  Chunk* const chunk = NewChunk();
  chunk->at = at;
  chunk->range = range;
  chunk->bytes = bytes;
  total_bytes_ += bytes;
  if (join_ranges_) {
    if (auto last = lasts_.find(at); last != lasts_.end()) {
      chunk->before = last->second;
      chunk->before->after = chunk;
      lasts_.erase(last);
    }
    if (auto first = firsts_.find(at + bytes); first != firsts_.end()) {
      chunk->after = first->second;
      chunk->after->before = chunk;
      firsts_.erase(first);
    }
  }
  if (chunk->before == nullptr) firsts_[at] = chunk;
  if (chunk->after == nullptr) lasts_[at + bytes] = chunk;
  return Put(chunk, freed_on, epoch);
}

std::vector<Chunk*> BlockHeap::CleanChunks(uint64_t least_bytes) const {
  std::vector<Chunk*> chunks;
  auto set = free_.find(nullptr);
  if (set == free_.end()) return chunks;
  for (auto it = set->second.lower_bound({least_bytes, 0, nullptr}); it != set->second.end();
       ++it) {
    chunks.push_back(it->chunk);
  }
  return chunks;
}

void BlockHeap::RemoveRange(Chunk* chunk, uintptr_t at, uint64_t bytes) {
  RemoveFree(chunk);
  if (chunk->at < at) {
    Split(chunk, at - chunk->at);
    AddFree(chunk);
    chunk = chunk->after;
  }
  if (chunk->bytes > bytes) {
    Split(chunk, bytes);
    AddFree(chunk->after);
  }
  if (chunk->before != nullptr) {
    chunk->before->after = nullptr;
    lasts_[at] = chunk->before;
  } else {
    firsts_.erase(at);
  }
  if (chunk->after != nullptr) {
    chunk->after->before = nullptr;
    firsts_[at + bytes] = chunk->after;
  } else {
    lasts_.erase(at + bytes);
  }
  total_bytes_ -= bytes;
  DeleteChunk(chunk);
}

// --- Taking and freeing --------------------------------------------------------------

Chunk* BlockHeap::Cut(Chunk* chunk, uint64_t bytes) {
  RemoveFree(chunk);
  if (chunk->bytes > bytes) {
    Split(chunk, bytes);
    AddFree(chunk->after);
  }
  return chunk;
}

Chunk* BlockHeap::Take(uint64_t bytes, const Timeline* stream, Bound bound) {
  Chunk* best = nullptr;
  const auto look = [&](const FreeSet& set, uint64_t latest) {
    for (auto it = set.lower_bound({bytes, 0, nullptr}); it != set.end(); ++it) {
      if (best != nullptr && it->bytes >= best->bytes) return;
      if (it->chunk->epoch > latest) continue;
      best = it->chunk;
      return;
    }
  };
  for (const Timeline* own : {stream, static_cast<const Timeline*>(nullptr)}) {
    if (auto set = free_.find(own); set != free_.end()) look(set->second, UINT64_MAX);
  }
  if (best == nullptr) {
    for (const auto& [owner, set] : free_) {
      if (owner == stream || owner == nullptr) continue;
      if (const uint64_t latest = bound(owner); latest > 0) look(set, latest);
    }
  }
  return best == nullptr ? nullptr : Cut(best, bytes);
}

bool BlockHeap::HasCloseFit(uint64_t bytes, const Timeline* stream) const {
  for (const Timeline* own : {stream, static_cast<const Timeline*>(nullptr)}) {
    auto set = free_.find(own);
    if (set == free_.end()) continue;
    auto it = set->second.lower_bound({bytes, 0, nullptr});
    if (it != set->second.end() && it->bytes <= bytes + bytes / 8) return true;
  }
  return false;
}

bool BlockHeap::HasFit(uint64_t bytes, Bound bound) const {
  for (const auto& [owner, set] : free_) {
    const uint64_t latest = owner == nullptr ? UINT64_MAX : bound(owner);
    for (auto it = set.lower_bound({bytes, 0, nullptr}); it != set.end(); ++it) {
      if (it->chunk->epoch <= latest) return true;
    }
  }
  return false;
}

Chunk* BlockHeap::FindRun(uint64_t bytes, Bound bound) const {
  const auto usable = [&](const Chunk* chunk) {
    return chunk != nullptr && chunk->free &&
           (chunk->freed_on == nullptr || chunk->epoch <= bound(chunk->freed_on));
  };
  Chunk* best = nullptr;
  uint64_t best_bytes = UINT64_MAX;
  for (Chunk* seam : seams_) {
    if (!usable(seam) || !usable(seam->after)) continue;
    Chunk* begin = seam;
    while (usable(begin->before)) begin = begin->before;
    if (begin != seam) continue;  // another seam is the first of the run
    uint64_t together = 0;
    for (const Chunk* chunk = begin; usable(chunk); chunk = chunk->after) together += chunk->bytes;
    if (together >= bytes && together < best_bytes) {
      best = begin;
      best_bytes = together;
    }
  }
  return best;
}

Chunk* BlockHeap::Gather(uint64_t bytes, Bound bound) {
  Chunk* const best = FindRun(bytes, bound);
  if (best == nullptr) return nullptr;
  RemoveFree(best);
  while (best->bytes < bytes) {
    const uint64_t missing = bytes - best->bytes;
    Chunk* const next = best->after;
    RemoveFree(next);
    if (next->bytes > missing) {
      Split(next, missing);
      AddFree(next->after);
    }
    if (next->freed_on != best->freed_on) {
      best->freed_on = nullptr;
      best->epoch = kOfSeveral;
    }
    Join(best);
  }
  if (best->bytes > bytes) {
    Split(best, bytes);
    AddFree(best->after);
  }
  return best;
}

Chunk* BlockHeap::Put(Chunk* chunk, Timeline* freed_on, uint64_t epoch) {
  chunk->freed_on = freed_on;
  chunk->epoch = freed_on == nullptr ? 0 : epoch;
  const auto joins = [&](const Chunk* other) {
    return other != nullptr && other->free &&
           (other->freed_on == freed_on ||
            (other->freed_on == nullptr && other->bytes <= chunk->bytes));
  };
  const auto join_after = [&] {
    RemoveFree(chunk->after);
    chunk->epoch = std::max(chunk->epoch, chunk->after->epoch);
    Join(chunk);
  };
  const auto join_before = [&] {
    Chunk* const before = chunk->before;
    RemoveFree(before);
    before->freed_on = freed_on;
    before->epoch = std::max(before->epoch, chunk->epoch);
    Join(before);
    chunk = before;
  };
  // A joined chunk may be large enough for the next join.
  for (bool again = true; again;) {
    again = false;
    if (joins(chunk->after)) {
      join_after();
      again = true;
    }
    if (joins(chunk->before)) {
      join_before();
      again = true;
    }
  }
  AddFree(chunk);
  return chunk;
}

std::vector<BlockHeap::Piece> BlockHeap::RemoveRun(Chunk* chunk) {
  while (chunk->before != nullptr) chunk = chunk->before;
  firsts_.erase(chunk->at);
  std::vector<Piece> pieces;
  while (chunk != nullptr) {
    RemoveFree(chunk);
    pieces.push_back({chunk->bytes, chunk->freed_on, chunk->epoch});
    total_bytes_ -= chunk->bytes;
    Chunk* const after = chunk->after;
    if (after == nullptr) lasts_.erase(chunk->at + chunk->bytes);
    DeleteChunk(chunk);
    chunk = after;
  }
  return pieces;
}

uint64_t BlockHeap::PutPieces(Chunk* chunk, const std::vector<Piece>& pieces) {
  uint64_t largest = 0;
  for (const Piece& piece : pieces) {
    Chunk* rest = nullptr;
    if (chunk->bytes > piece.bytes) {
      Split(chunk, piece.bytes);
      rest = chunk->after;
    }
    largest = std::max(largest, Put(chunk, piece.freed_on, piece.epoch)->bytes);
    chunk = rest;
  }
  return largest;
}

// --- Streams -------------------------------------------------------------------------

void BlockHeap::Clean(Timeline* stream, uint64_t epoch) {
  auto set = free_.find(stream);
  if (set == free_.end()) return;
  std::vector<Chunk*> clean;
  for (const BySize& entry : set->second) {
    if (entry.chunk->epoch <= epoch) clean.push_back(entry.chunk);
  }
  for (Chunk* chunk : clean) RemoveFree(chunk);
  // By address, so that a chunk is never joined to one that is still to be visited.
  std::sort(clean.begin(), clean.end(),
            [](const Chunk* one, const Chunk* other) { return one->at < other->at; });
  for (Chunk* chunk : clean) Put(chunk, nullptr, 0);
}

std::vector<Timeline*> BlockHeap::Owners() const {
  std::vector<Timeline*> owners;
  for (const auto& [owner, set] : free_) {
    if (owner != nullptr) owners.push_back(const_cast<Timeline*>(owner));
  }
  return owners;
}

std::vector<const Chunk*> BlockHeap::Tails() const {
  std::vector<const Chunk*> tails;
  for (const auto& [end, last] : lasts_) tails.push_back(last);
  return tails;
}

absl::Status BlockHeap::CheckInvariants() const {
  const auto wrong = [](auto... what) { return absl::InternalError(absl::StrCat(what...)); };
  uint64_t bytes = 0, free_bytes = 0;
  size_t free_chunks = 0, runs = 0, seams = 0;
  for (const auto& [at, first] : firsts_) {
    ++runs;
    if (first->at != at || first->before != nullptr) return wrong("a run begins in the middle");
    const Chunk* chunk = first;
    for (;; chunk = chunk->after) {
      bytes += chunk->bytes;
      if (chunk->bytes == 0) return wrong("an empty chunk at ", chunk->at);
      if (chunk->free) {
        free_bytes += chunk->bytes;
        ++free_chunks;
        auto set = free_.find(chunk->freed_on);
        if (set == free_.end() ||
            !set->second.contains({chunk->bytes, chunk->at, const_cast<Chunk*>(chunk)})) {
          return wrong("the free chunk at ", chunk->at, " is in no set");
        }
      }
      const Chunk* const after = chunk->after;
      if (after == nullptr) break;
      if (after->before != chunk || after->at != chunk->at + chunk->bytes) {
        return wrong("the neighbours at ", after->at, " are not linked");
      }
      if (chunk->free && after->free && chunk->freed_on == after->freed_on) {
        return wrong("the free neighbours at ", after->at, " are not joined");
      }
      const bool seam = chunk->free && after->free;
      seams += seam ? 1 : 0;
      if (seam != seams_.contains(const_cast<Chunk*>(chunk))) {
        return wrong("the seam at ", after->at, " is wrong");
      }
    }
    auto last = lasts_.find(chunk->at + chunk->bytes);
    if (last == lasts_.end() || last->second != chunk)
      return wrong("the end of a run is not indexed");
  }
  size_t in_sets = 0;
  for (const auto& [owner, set] : free_) in_sets += set.size();
  if (bytes != total_bytes_ || free_bytes != free_bytes_ || free_chunks != free_chunks_ ||
      in_sets != free_chunks || lasts_.size() != runs || seams_.size() != seams) {
    return wrong("the totals are wrong");
  }
  return absl::OkStatus();
}

}  // namespace gpumem::internal
