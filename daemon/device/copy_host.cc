// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/copy_host.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "daemon/device/memfd.h"

namespace gpumemd {
namespace {

enum class Direction { kOut, kBack };  // to the tier, from the tier

// Copies between `tier` and the segment's bytes from `offset` on. The system accesses both: missing
// memory is an error of the call and no SIGBUS.
absl::Status CopyExtent(Direction direction, int segment, uint64_t offset, const MemfdMapping& tier,
                        uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    char* const address = tier.address() + done;
    const auto at = static_cast<off_t>(offset + done);
    const bool out = direction == Direction::kOut;
    const ssize_t copied = out ? pread(segment, address, bytes - done, at)
                               : pwrite(segment, address, bytes - done, at);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0) {
      const int error = errno == EFAULT ? ENOMEM : errno;  // pages of the tier that are missing
      return MemfdError(error, out ? "pread" : "pwrite", bytes);
    }
    if (copied == 0) return absl::InvalidArgumentError("the segment is smaller than its contents");
    done += static_cast<uint64_t>(copied);
  }
  return absl::OkStatus();
}

absl::Status CopyItemOnHost(const CopyItem& item) {
  const TierPlace* const to_tier = item.to->tier_place();
  const TierPlace* const from_tier = item.from->tier_place();
  const Direction direction = to_tier != nullptr ? Direction::kOut : Direction::kBack;
  const TierPlace* const tier = to_tier != nullptr ? to_tier : from_tier;
  const int segment = (to_tier != nullptr ? item.from : item.to)->fd();
  if (tier == nullptr || segment < 0) {
    return absl::InvalidArgumentError(
        "host memory is copied between a segment with a descriptor and the host tier alone");
  }
  uint64_t done = 0;
  for (const TierExtent& extent : tier->extents) {
    if (done == item.bytes) break;
    const uint64_t bytes = std::min(extent.bytes, item.bytes - done);
    const MemfdMapping mapping(tier->fd, extent.offset, bytes);
    if (!mapping.valid()) return MemfdError(errno, "mmap", bytes);
    if (absl::Status copied = CopyExtent(direction, segment, done, mapping, bytes); !copied.ok()) {
      return copied;
    }
    done += bytes;
  }
  if (done == item.bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a segment of ", item.bytes, " bytes has ", done, " in the host tier"));
}

}  // namespace

absl::Status CopyHostMemory(absl::Span<const CopyItem> items) {
  for (const CopyItem& item : items) {
    if (absl::Status copied = CopyItemOnHost(item); !copied.ok()) return copied;
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
