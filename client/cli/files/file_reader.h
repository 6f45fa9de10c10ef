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

namespace gpumem::cli {

// What the kernel has in its page cache is copied from there; the rest is read past it, from the
// disk into the buffer itself (O_DIRECT, see open(2)), where the file system can: that takes less
// of the processors, and leaves others' files in the cache. Thread-safe.
class FileReader {
 public:
  // Buffers and offsets are multiples of this.
  static constexpr uint64_t kAlignment = 4096;

  //   NOT_FOUND, PERMISSION_DENIED  as the system says
  //   INVALID_ARGUMENT              no regular file, or an empty one
  static absl::StatusOr<std::unique_ptr<FileReader>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string name() const;  // without its folder
  uint64_t bytes() const { return static_cast<uint64_t>(before_.st_size); }

  // Reads `bytes` at `offset`. The buffer has room for that, rounded up to a multiple of
  // kAlignment.
  //   DATA_LOSS  the disk's error
  //   ABORTED    the file has become shorter
  absl::Status Read(uint64_t offset, uint64_t bytes, void* buffer);

  // ABORTED: somebody has written to the file since it was opened, so that what was read is
  // perhaps neither what was there nor what is.
  absl::Status CheckUnchanged() const;

 private:
  FileReader(std::string path, UniqueFd cached, UniqueFd direct, const struct stat& before);

  const std::string path_;
  const UniqueFd cached_;
  const UniqueFd direct_;  // none where the file system cannot
  const struct stat before_;
  std::atomic<bool> use_direct_;
};

}  // namespace gpumem::cli
