// SPDX-License-Identifier: Apache-2.0
// A file, read in large pieces by several threads.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace gpumem::internal {

// Reads through the kernel's page cache, and requests read-ahead well before each read. The disk is
// thereby always busy, in order. (Reads past the cache, O_DIRECT, were slower in measurements:
// docs/benchmarks.md.) Thread-safe.
class FileReader {
 public:
  //   NOT_FOUND, PERMISSION_DENIED  the error of the system
  //   INVALID_ARGUMENT              no regular file, or an empty one
  static absl::StatusOr<std::unique_ptr<FileReader>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string name() const;  // without its folder
  // Its state when it was opened.
  const struct stat& before() const { return before_; }
  uint64_t bytes() const { return static_cast<uint64_t>(before_.st_size); }

  // Reads `bytes` at `offset`. Offsets should roughly ascend from call to call.
  //   DATA_LOSS  the disk's error
  //   ABORTED    the file has become shorter
  absl::Status Read(uint64_t offset, uint64_t bytes, void* buffer);

  // Requests read-ahead up to `end`, unless already requested.
  void AskBefore(uint64_t end);
  // Returns the end of what was requested so.
  uint64_t asked() const { return asked_.load(std::memory_order_relaxed); }
  // True if the byte there is in the page cache. Waits for no disk, but may have it read the byte.
  bool IsCached(uint64_t offset) const;

  // Returns ABORTED if the file was written to since it was opened: the bytes read may be neither
  // its old nor its new contents.
  absl::Status CheckUnchanged() const;

 private:
  // The distance of the read-ahead.
  static constexpr uint64_t kAheadBytes = uint64_t{64} << 20;

  FileReader(std::string path, UniqueFd file, const struct stat& before);

  const std::string path_;
  const UniqueFd file_;
  const struct stat before_;
  std::atomic<uint64_t> asked_ = 0;  // the end of the requested part
};

}  // namespace gpumem::internal
