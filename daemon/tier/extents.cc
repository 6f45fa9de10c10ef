// SPDX-License-Identifier: Apache-2.0
#include "daemon/tier/extents.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

// Ends the process unless an invariant of this code holds.
void Require(bool invariant) {
  if (!invariant) abort();
}

}  // namespace

Extents::Extents(uint64_t bytes, uint64_t granule_bytes)
    : bytes_(bytes), granule_bytes_(granule_bytes) {
  Require(granule_bytes > 0 && bytes % granule_bytes == 0);
  if (bytes > 0) Insert(0, bytes);
}

std::optional<std::vector<TierExtent>> Extents::Take(uint64_t bytes) {
  Require(bytes > 0 && bytes % granule_bytes_ == 0);
  if (bytes > free_bytes_) return std::nullopt;
  std::vector<TierExtent> taken;
  while (bytes > 0) {
    // The smallest range that holds all the rest. Without one, the largest takes part.
    auto fit = by_size_.lower_bound({bytes, 0});
    if (fit == by_size_.end()) --fit;
    const TierExtent extent{.offset = fit->second, .bytes = std::min(bytes, fit->first)};
    Cut(free_.find(fit->second), extent);
    taken.push_back(extent);
    bytes -= extent.bytes;
  }
  std::sort(taken.begin(), taken.end(), [](const TierExtent& one, const TierExtent& other) {
    return one.offset < other.offset;
  });
  return taken;
}

absl::Status Extents::TakeExactly(absl::Span<const TierExtent> extents) {
  for (size_t i = 0; i < extents.size(); ++i) {
    const TierExtent& extent = extents[i];
    absl::Status wrong;
    if (extent.bytes == 0 || extent.offset % granule_bytes_ != 0 ||
        extent.bytes % granule_bytes_ != 0) {
      wrong = absl::InvalidArgumentError(
          absl::StrCat("it is no multiple of ", granule_bytes_, " bytes above zero"));
    } else if (extent.offset >= bytes_ || extent.bytes > bytes_ - extent.offset) {
      wrong = absl::InvalidArgumentError(absl::StrCat("the tier has ", bytes_, " bytes"));
    } else if (auto around = FindAround(extent); around == free_.end()) {
      wrong = absl::InvalidArgumentError("other contents lie there");
    } else {
      Cut(around, extent);
      continue;
    }
    Give(extents.first(i));
    return absl::InvalidArgumentError(absl::StrCat("the extent of ", extent.bytes, " bytes at ",
                                                   extent.offset,
                                                   " cannot be taken: ", wrong.message()));
  }
  return absl::OkStatus();
}

void Extents::Give(absl::Span<const TierExtent> extents) {
  for (const TierExtent& extent : extents) {
    uint64_t begin = extent.offset;
    uint64_t end = extent.offset + extent.bytes;
    auto next = free_.lower_bound(begin);
    Require(next == free_.end() || next->first >= end);
    if (next != free_.end() && next->first == end) {
      end += next->second;
      auto merged = next++;
      Erase(merged);
    }
    if (next != free_.begin()) {
      auto previous = std::prev(next);
      Require(previous->first + previous->second <= begin);
      if (previous->first + previous->second == begin) {
        begin = previous->first;
        Erase(previous);
      }
    }
    Insert(begin, end - begin);
  }
}

std::vector<TierExtent> Extents::FreeRanges() const {
  std::vector<TierExtent> ranges;
  for (const auto& [offset, bytes] : free_) ranges.push_back({.offset = offset, .bytes = bytes});
  return ranges;
}

void Extents::Insert(uint64_t offset, uint64_t bytes) {
  free_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
  free_bytes_ += bytes;
}

void Extents::Erase(Ranges::iterator range) {
  by_size_.erase({range->second, range->first});
  free_bytes_ -= range->second;
  free_.erase(range);
}

void Extents::Cut(Ranges::iterator range, const TierExtent& part) {
  const uint64_t begin = range->first;
  const uint64_t end = begin + range->second;
  Erase(range);
  if (begin < part.offset) Insert(begin, part.offset - begin);
  const uint64_t part_end = part.offset + part.bytes;
  if (part_end < end) Insert(part_end, end - part_end);
}

Extents::Ranges::iterator Extents::FindAround(const TierExtent& extent) {
  auto after = free_.upper_bound(extent.offset);
  if (after == free_.begin()) return free_.end();
  auto range = std::prev(after);
  const bool inside = range->first + range->second >= extent.offset + extent.bytes;
  return inside ? range : free_.end();
}

}  // namespace gpumemd
