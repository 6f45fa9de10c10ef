// SPDX-License-Identifier: Apache-2.0
// A host tier's file without the host tier.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/device/device.h"

namespace gpumemd {

// A mapped memfd of fixed size, of zeros at first.
class TierMemory {
 public:
  static absl::StatusOr<std::unique_ptr<TierMemory>> Make(uint64_t bytes);
  ~TierMemory();
  TierMemory(const TierMemory&) = delete;
  TierMemory& operator=(const TierMemory&) = delete;

  // Returns a segment of kind tier. The extents may be any; this must outlive the segment.
  std::unique_ptr<Allocation> Place(std::vector<TierExtent> extents) const;

  int fd() const { return fd_.get(); }
  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  TierMemory(gpumem::UniqueFd fd, char* data, uint64_t bytes)
      : fd_(std::move(fd)), data_(data), bytes_(bytes) {}

  const gpumem::UniqueFd fd_;
  char* const data_;
  const uint64_t bytes_;
};

}  // namespace gpumemd
