// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/tier_file.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"

namespace gpumemd {

absl::StatusOr<std::unique_ptr<TierFile>> TierFile::Map(int fd) {
  struct stat file = {};
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size <= 0) {
    return absl::InternalError("the host tier's descriptor is not of a file with contents");
  }
  const auto bytes = static_cast<uint64_t>(file.st_size);
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    const std::string message = absl::StrCat(absl::ErrnoToStatus(error, "mmap").message(),
                                             ", for the host tier's ", gpumem::FormatBytes(bytes));
    if (error == ENOMEM) return absl::ResourceExhaustedError(message);
    return absl::InternalError(message);
  }
  return std::unique_ptr<TierFile>(
      new TierFile(static_cast<char*>(data), bytes, file.st_dev, file.st_ino));
}

TierFile::~TierFile() { munmap(data_, bytes_); }

bool TierFile::Is(int fd) const {
  struct stat file = {};
  return fstat(fd, &file) == 0 && file.st_dev == device_ && file.st_ino == inode_ &&
         static_cast<uint64_t>(file.st_size) == bytes_;
}

TierFile::Window TierFile::window(uint64_t index) const {
  const uint64_t offset = index * kWindowBytes;
  return {.data = At(offset), .bytes = std::min(kWindowBytes, bytes_ - offset)};
}

absl::Status TierFile::Check(const CopyBatch& batch) const {
  for (const CopyPart& part : batch.parts) {
    uint64_t rest = part.offset <= part.segment_bytes ? part.segment_bytes - part.offset : 0;
    for (const TierExtent& extent : part.extents) {
      if (extent.offset > bytes_ || extent.bytes > bytes_ - extent.offset) {
        return absl::InternalError(absl::StrCat("the host tier has no ", extent.bytes, " bytes at ",
                                                extent.offset, ", but ", bytes_, " in all"));
      }
      if (extent.bytes > rest) {
        return absl::InternalError(absl::StrCat("a segment of ", part.segment_bytes,
                                                " bytes has fewer than are to be copied"));
      }
      rest -= extent.bytes;
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
