// A file, read in large pieces by several threads.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumem::cli {

// What the kernel has in its page cache is copied from there. The rest is read past it, from the
// disk into the buffer itself (O_DIRECT, see open(2)), where the file system can and that is the
// faster way: it is on a fast disk, and not on some virtual ones. The first pieces go both ways,
// and the others the better one. Thread-safe.
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
  // Which way is faster. The first pieces go either way in turn, and the others as those did
  // better.
  class Race {
   public:
    struct Way {
      bool direct = false;
      bool timed = false;
    };
    Way Next();
    void Took(const Way& way, absl::Duration time);
    void DirectFails() { direct_fails_.store(true, std::memory_order_relaxed); }

   private:
    static constexpr int kTimed = 16;
    std::atomic<int> begun_ = 0;
    std::atomic<bool> direct_fails_ = false;
    std::atomic<int64_t> lead_ns_ = 0;  // of direct reads
  };

  // Reads `bytes` at `offset`, of which `done` are there; answers how many are there then. A direct
  // read that fails is no error: less is there.
  absl::StatusOr<uint64_t> ReadOn(bool direct, uint64_t offset, uint64_t bytes, uint64_t done,
                                  char* buffer);

  FileReader(std::string path, UniqueFd cached, UniqueFd direct, const struct stat& before);

  const std::string path_;
  const UniqueFd cached_;
  const UniqueFd direct_;  // none where the file system cannot
  const struct stat before_;
  Race race_;
};

}  // namespace gpumem::cli
