// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/host_copy.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "daemon/device/memfd.h"

namespace gpumemd {
namespace {

absl::Status CopyOne(const TierFile& file, CopyDirection direction, const CopyPart& part) {
  const absl::Status sized = CheckMemfd(part.fd, part.segment_bytes);
  if (!sized.ok()) return absl::InternalError(sized.message());
  const int access = direction == CopyDirection::kOut ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const mapped = mmap(nullptr, part.segment_bytes, access, MAP_SHARED, part.fd, 0);
  if (mapped == MAP_FAILED) return MemfdError(errno, "mmap", part.segment_bytes);
  const absl::Cleanup unmap = [&] { munmap(mapped, part.segment_bytes); };
  char* at = static_cast<char*>(mapped) + part.offset;
  for (const TierExtent& extent : part.extents) {
    char* const in_tier = file.At(extent.offset);
    if (direction == CopyDirection::kOut) {
      std::memcpy(in_tier, at, extent.bytes);
    } else {
      std::memcpy(at, in_tier, extent.bytes);
    }
    at += extent.bytes;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status HostCopy::Run(const CopyBatch& batch) {
  if (file_ == nullptr || !file_->Is(batch.tier_fd)) {
    absl::StatusOr<std::unique_ptr<TierFile>> mapped = TierFile::Map(batch.tier_fd);
    if (!mapped.ok()) return mapped.status();
    file_ = *std::move(mapped);
  }
  if (absl::Status status = file_->Check(batch); !status.ok()) return status;
  for (const CopyPart& part : batch.parts) {
    if (absl::Status status = CopyOne(*file_, batch.direction, part); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
