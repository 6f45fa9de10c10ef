// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/api_line.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "daemon/transport/descriptor_reserve.h"

namespace gpumemd {

using gpumem::UniqueFd;

absl::StatusOr<std::shared_ptr<ApiLine>> ApiLine::Of(const UniqueFd& served) {
  struct stat found;
  UniqueFd duplicate(fcntl(served.get(), F_DUPFD_CLOEXEC, 0));
  if (!duplicate.valid() || fstat(served.get(), &found) != 0) {
    return NoDescriptors();
  }
  return std::make_shared<ApiLine>(std::move(duplicate), served.get(), found.st_ino);
}

ApiLine::ApiLine(UniqueFd duplicate, int number, ino_t inode)
    : duplicate_(std::move(duplicate)), number_(number), inode_(inode) {}

ApiLine::~ApiLine() { Cut(); }

void ApiLine::Cut() {
  UniqueFd last;
  {
    absl::MutexLock lock(&mutex_);
    last = std::move(duplicate_);
    cut_ = true;
  }
  if (!last.valid()) return;
  shutdown(last.get(), SHUT_RDWR);
  // Queued bytes would still be read: a flood's worth of requests. The peer can add nothing now.
  std::array<char, 16 * 1024> discarded;
  ssize_t size;
  do {
    size = recv(last.get(), discarded.data(), discarded.size(), MSG_DONTWAIT);
  } while (size > 0 || (size < 0 && errno == EINTR));
}

bool ApiLine::Closed() const {
  // The number may be another file's by now. The kernel counts the inodes of sockets up, so that
  // no socket of the near future has this one's.
  struct stat found;
  return fstat(number_, &found) != 0 || found.st_ino != inode_;
}

bool ApiLine::Stalled(absl::Time now, absl::Duration patience) {
  absl::MutexLock lock(&mutex_);
  if (!duplicate_.valid()) return false;
  pollfd writable{.fd = duplicate_.get(), .events = POLLOUT, .revents = 0};
  if (poll(&writable, 1, 0) != 0) {
    full_since_ = absl::InfiniteFuture();
    return false;
  }
  full_since_ = std::min(full_since_, now);
  return full_since_ <= now - patience;
}

}  // namespace gpumemd
