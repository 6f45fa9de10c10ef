// SPDX-License-Identifier: Apache-2.0
// Allocates the parts of a file of fixed size.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Knows the free ranges. Pure: touches no file. Not thread-safe.
class Extents {
 public:
  // All of a file of `bytes` is free. Requires a multiple of `granule_bytes`.
  Extents(uint64_t bytes, uint64_t granule_bytes);

  // Takes `bytes`, a multiple of the granule above zero, in as few extents as possible, in the
  // order of their offsets. Of several free ranges that hold all of it, takes the smallest. Returns
  // nothing if fewer bytes are free.
  std::optional<std::vector<TierExtent>> Take(uint64_t bytes);

  // Takes exactly these. On an error takes none.
  //   INVALID_ARGUMENT  one is empty, no multiple of the granule, outside the file, or not free
  absl::Status TakeExactly(absl::Span<const TierExtent> extents);

  // Returns extents that were taken. Parts of them may be given separately.
  void Give(absl::Span<const TierExtent> extents);

  uint64_t free_bytes() const { return free_bytes_; }
  // Returns the free ranges in the order of their offsets. No two of them touch.
  std::vector<TierExtent> FreeRanges() const;

 private:
  using Ranges = std::map<uint64_t, uint64_t>;  // bytes by offset

  void Insert(uint64_t offset, uint64_t bytes);
  void Erase(Ranges::iterator range);
  // Takes a part of one free range. Requires that the part lies in it.
  void Cut(Ranges::iterator range, const TierExtent& part);
  // Returns the free range that contains `extent`; end() if there is none.
  Ranges::iterator FindAround(const TierExtent& extent);

  const uint64_t bytes_;
  const uint64_t granule_bytes_;
  uint64_t free_bytes_ = 0;
  Ranges free_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // the same ranges: bytes, offset
};

}  // namespace gpumemd
