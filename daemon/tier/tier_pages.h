// SPDX-License-Identifier: Apache-2.0
// The memory of the host tier: one memfd of fixed size.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "daemon/device/device.h"
#include "daemon/device/memfd.h"

namespace gpumemd {

// The tier's granularity: a huge page.
inline constexpr uint64_t kTierGranule = uint64_t{2} << 20;

// Sealed against resizing. Its pages take memory as they are allocated, and keep it then.
// Thread-safe.
class TierPages {
 public:
  // Makes a file of ordinary pages; with `advise_huge` of transparent huge pages where the machine
  // allows them for shared memory.
  //   RESOURCE_EXHAUSTED  no memory or descriptors left
  //   INTERNAL            any other error of the system
  static absl::StatusOr<TierPages> Make(uint64_t bytes, bool advise_huge);
  // Makes a file of huge pages and reserves all of them. Returns nothing if the machine has too few
  // and cannot make more of ordinary memory (vm.nr_overcommit_hugepages). Statuses as above.
  static absl::StatusOr<std::optional<TierPages>> MakeHuge(uint64_t bytes);
  // Takes over the file of an earlier daemon.
  //   INVALID_ARGUMENT  it is no sealed memfd of whole granules
  static absl::StatusOr<TierPages> Adopt(gpumem::UniqueFd fd, bool advise_huge);

  class Range;

  int fd() const { return fd_.get(); }
  uint64_t bytes() const { return bytes_; }
  // True if its pages take memory of the machine as they are allocated. False: the machine has huge
  // pages reserved for all of it.
  bool takes_memory() const { return !reserved_; }

  // Returns the ranges whose pages are allocated, in whole granules. May leave out some.
  std::vector<TierExtent> Allocated() const;

 private:
  TierPages(gpumem::UniqueFd fd, uint64_t bytes, bool reserved, bool advise_huge)
      : fd_(std::move(fd)), bytes_(bytes), reserved_(reserved), advise_huge_(advise_huge) {}

  gpumem::UniqueFd fd_;
  uint64_t bytes_;
  bool reserved_;
  bool advise_huge_;
};

// A range of the file in this process's addresses while this lives. Threads work on parts of it at
// the same time: changes of the addresses themselves would wait for each other. Thread-safe.
class TierPages::Range {
 public:
  // `file` must outlive this.
  Range(const TierPages& file, const TierExtent& range);

  // Allocates the pages of a part. Their contents stay; new pages are zero. Returns when the system
  // counts the memory.
  //   RESOURCE_EXHAUSTED  no memory or addresses left
  //   INTERNAL            any other error of the system
  absl::Status Allocate(const TierExtent& part) const;
  // Sets the contents of a part to zero. Requires allocated pages. Statuses as above.
  absl::Status Zero(const TierExtent& part) const;

 private:
  // Takes the pages of a part out of this process. They stay in the file.
  void Leave(const TierExtent& part) const;
  char* At(const TierExtent& part) const { return mapping_.address() + (part.offset - offset_); }

  const TierPages& file_;
  const uint64_t offset_;
  const MemfdMapping mapping_;
  const int error_;  // of the mapping; 0: it is there
};

}  // namespace gpumemd
