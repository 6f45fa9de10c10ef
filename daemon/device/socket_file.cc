// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/socket_file.h"

#include <sys/stat.h>
#include <unistd.h>

namespace gpumemd {

SocketFile SocketFile::At(const std::string& path) {
  SocketFile file;
  struct stat now = {};
  if (lstat(path.c_str(), &now) != 0 || !S_ISSOCK(now.st_mode)) return file;
  file.path_ = path;
  file.device_ = now.st_dev;
  file.inode_ = now.st_ino;
  file.changed_ = now.st_ctim;
  return file;
}

void SocketFile::Remove() const {
  if (path_.empty()) return;
  const SocketFile now = At(path_);
  if (now.device_ == device_ && now.inode_ == inode_ && now.changed_.tv_sec == changed_.tv_sec &&
      now.changed_.tv_nsec == changed_.tv_nsec) {
    unlink(path_.c_str());
  }
}

}  // namespace gpumemd
