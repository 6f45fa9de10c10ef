// SPDX-License-Identifier: Apache-2.0
// The state of the host tier's memory: which extents are free, which pages are allocated, and whose
// contents they had last.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "daemon/device/device.h"
#include "daemon/device/machine_memory.h"
#include "daemon/tier/extents.h"
#include "daemon/tier/tier_pages.h"

namespace gpumemd {

// Thread-safe.
class TierMemory {
 public:
  // `inherited`: the file may have contents of unknown tenants. `root` as for MemoryGate.
  TierMemory(TierPages file, bool inherited, const std::string& root);

  const TierPages& file() const { return file_; }
  uint64_t free_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the bytes whose pages are known to be allocated.
  uint64_t allocated_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

  // As Extents::Take(). The extents need Prepare() before their use.
  std::optional<std::vector<TierExtent>> Take(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // As Extents::TakeExactly(), of an earlier daemon's extents. Their contents are of `tenant`.
  absl::Status TakeExactly(absl::Span<const TierExtent> extents, const std::string& tenant)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns extents that were taken. Their pages stay allocated.
  void Give(absl::Span<const TierExtent> extents) ABSL_LOCKS_EXCLUDED(mutex_);

  // Allocates the pages of extents that the caller has taken. Zeroes those with contents of other
  // tenants. May take half a second for each GiB.
  //   RESOURCE_EXHAUSTED  the machine has no memory left
  //   INTERNAL            any other error of the system
  absl::Status Prepare(absl::Span<const TierExtent> extents, const std::string& tenant)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Allocates the pages of the whole file, until `stop` or until the machine has no memory left.
  void AllocateAhead(const std::atomic<bool>& stop) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Null: none yet, so the contents are zero. Not interned: each segment has one copy of the name.
  using Owner = std::shared_ptr<const std::string>;
  struct Granule {
    bool allocated = false;
    Owner owner;
  };

  // Returns the parts of `extents` whose granules match, in pieces that one thread works on.
  std::vector<TierExtent> PiecesOf(absl::Span<const TierExtent> extents,
                                   const std::function<bool(const Granule&)>& matches) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetOwner(absl::Span<const TierExtent> extents, const Owner& owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MarkAllocated(const TierExtent& extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Allocates the pages of all pieces, in several threads. Stops when `stop` is set.
  absl::Status Allocate(absl::Span<const TierExtent> pieces, const std::atomic<bool>& stop)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AllocateOne(const TierPages::Range& range, const TierExtent& piece)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const TierPages file_;
  const std::shared_ptr<MemoryGate> gate_;
  mutable absl::Mutex mutex_;
  Extents extents_ ABSL_GUARDED_BY(mutex_);
  std::vector<Granule> granules_ ABSL_GUARDED_BY(mutex_);
  uint64_t allocated_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpumemd
