// SPDX-License-Identifier: Apache-2.0
// The host tier's file in the memory of a process that copies.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/device/context/context.h"

namespace gpumemd {

// The whole file, mapped while this lives. It consists of windows of kWindowBytes; the last one may
// be smaller. Thread-compatible.
class TierFile {
 public:
  static constexpr uint64_t kWindowBytes = uint64_t{64} << 20;

  struct Window {
    char* data = nullptr;
    uint64_t bytes = 0;
  };

  // Maps a file, whose descriptor need not stay open.
  //   RESOURCE_EXHAUSTED  no addresses left
  //   INTERNAL            it is no file, it is empty, or any other error of the system
  static absl::StatusOr<std::unique_ptr<TierFile>> Map(int fd);
  ~TierFile();
  TierFile(const TierFile&) = delete;
  TierFile& operator=(const TierFile&) = delete;

  // True if `fd` is of this file, and the file has kept its size.
  bool Is(int fd) const;

  char* At(uint64_t offset) const { return data_ + offset; }
  uint64_t bytes() const { return bytes_; }
  uint64_t windows() const { return (bytes_ + kWindowBytes - 1) / kWindowBytes; }
  Window window(uint64_t index) const;

  // Checks that the batch stays within this file and its segments.
  //   INTERNAL  it does not
  absl::Status Check(const CopyBatch& batch) const;

 private:
  TierFile(char* data, uint64_t bytes, dev_t device, ino_t inode)
      : data_(data), bytes_(bytes), device_(device), inode_(inode) {}

  char* const data_;
  const uint64_t bytes_;
  const dev_t device_;  // with inode_, the file's identity while it is mapped
  const ino_t inode_;
};

}  // namespace gpumemd
