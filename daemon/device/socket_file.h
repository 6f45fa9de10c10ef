// SPDX-License-Identifier: Apache-2.0
// The file of a unix socket, which other processes may replace.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <string>

namespace gpumemd {

// Identifies the file that was at a path at one time. Not thread-safe.
class SocketFile {
 public:
  // Nothing.
  SocketFile() = default;
  static SocketFile At(const std::string& path);

  // Unlinks the path, if it is still the same file.
  void Remove() const;

 private:
  std::string path_;  // empty: nothing was there
  dev_t device_ = 0;
  ino_t inode_ = 0;
  timespec changed_ = {};  // inode numbers are reused
};

}  // namespace gpumemd
