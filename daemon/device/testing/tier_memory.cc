// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/testing/tier_memory.h"

#include <sys/mman.h>

#include <cerrno>

#include "absl/status/status.h"
#include "daemon/device/memfd.h"

namespace gpumemd {
namespace {

class TierAllocation : public Allocation {
 public:
  explicit TierAllocation(TierPlace place) : place_(std::move(place)) {}
  const TierPlace* tier_place() const override { return &place_; }

 private:
  const TierPlace place_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TierMemory>> TierMemory::Make(uint64_t bytes) {
  absl::StatusOr<gpumem::UniqueFd> fd = MakeSealedMemfd("gpumem-tier:test", bytes);
  if (!fd.ok()) return fd.status();
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (data == MAP_FAILED) return MemfdError(errno, "mmap", bytes);
  return std::unique_ptr<TierMemory>(
      new TierMemory(*std::move(fd), static_cast<char*>(data), bytes));
}

TierMemory::~TierMemory() { munmap(data_, bytes_); }

std::unique_ptr<Allocation> TierMemory::Place(std::vector<TierExtent> extents) const {
  return std::make_unique<TierAllocation>(
      TierPlace{.fd = fd_.get(), .extents = std::move(extents)});
}

}  // namespace gpumemd
