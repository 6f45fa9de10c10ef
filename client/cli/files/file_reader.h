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

// Through the kernel's page cache, which is asked for what comes next well before it is read: the
// disk is busy all the time, and in order. (Reads past the cache, O_DIRECT, were slower where this
// was measured: docs/benchmarks.md.) Thread-safe.
class FileReader {
 public:
  //   NOT_FOUND, PERMISSION_DENIED  as the system says
  //   INVALID_ARGUMENT              no regular file, or an empty one
  static absl::StatusOr<std::unique_ptr<FileReader>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string name() const;  // without its folder
  uint64_t bytes() const { return static_cast<uint64_t>(before_.st_size); }

  // Reads `bytes` at `offset`. It is meant to be called in the order of the offsets, more or less.
  //   DATA_LOSS  the disk's error
  //   ABORTED    the file has become shorter
  absl::Status Read(uint64_t offset, uint64_t bytes, void* buffer);

  // ABORTED: somebody has written to the file since it was opened, so that what was read is
  // perhaps neither what was there nor what is.
  absl::Status CheckUnchanged() const;

 private:
  // How far the disk is ahead of what is read from it.
  static constexpr uint64_t kAheadBytes = uint64_t{64} << 20;

  FileReader(std::string path, UniqueFd file, const struct stat& before);

  // Asks the kernel for what lies before `end`, unless it was asked already.
  void AskBefore(uint64_t end);

  const std::string path_;
  const UniqueFd file_;
  const struct stat before_;
  std::atomic<uint64_t> asked_ = 0;  // what lies before this
};

}  // namespace gpumem::cli
