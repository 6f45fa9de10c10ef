// The file of a unix socket, which others may replace.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <string>

namespace gpumemd {

// What was at a path at one time. Not thread-safe.
class SocketFile {
 public:
  // Nothing.
  SocketFile() = default;
  static SocketFile At(const std::string& path);

  // Unlinks the path, if what it was is still there.
  void Remove() const;

 private:
  std::string path_;  // empty: nothing was there
  dev_t device_ = 0;
  ino_t inode_ = 0;
  timespec changed_ = {};  // numbers of inodes are used again
};

}  // namespace gpumemd
