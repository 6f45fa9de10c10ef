// SPDX-License-Identifier: Apache-2.0
#include "daemon/log/ready_write.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "absl/time/clock.h"

namespace gpumemd {
namespace {

bool HasRoom(int fd, absl::Duration time) {
  pollfd room{.fd = fd, .events = POLLOUT, .revents = 0};
  const int64_t ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(time), 0, INT_MAX);
  return poll(&room, 1, static_cast<int>(ms)) > 0;
}

// write(2) that fails with EAGAIN instead of waiting.
ssize_t WriteSome(int fd, mode_t type, absl::string_view bytes) {
  if (type == S_IFREG) return write(fd, bytes.data(), bytes.size());
  if (type == S_IFSOCK) return send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  // In pieces that a pipe with room takes whole. Kernels before 6.4 do not support RWF_NOWAIT for
  // pipes, nor does any kernel for terminals; there the test for room prevents waiting.
  iovec piece{const_cast<char*>(bytes.data()), std::min<size_t>(bytes.size(), PIPE_BUF)};
  const ssize_t n = pwritev2(fd, &piece, 1, -1, RWF_NOWAIT);
  if (n >= 0 || errno != EOPNOTSUPP) return n;
  if (!HasRoom(fd, absl::ZeroDuration())) {
    errno = EAGAIN;
    return -1;
  }
  return write(fd, piece.iov_base, piece.iov_len);
}

}  // namespace

ReadyWrite WriteReady(int fd, absl::string_view* rest) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return ReadyWrite::kFailed;
  while (!rest->empty()) {
    const ssize_t n = WriteSome(fd, info.st_mode & S_IFMT, *rest);
    if (n >= 0) {
      rest->remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return ReadyWrite::kBlocked;
    } else if (errno != EINTR) {
      return ReadyWrite::kFailed;
    }
  }
  return ReadyWrite::kDone;
}

ReadyWrite WriteWithin(int fd, absl::string_view* rest, absl::Duration time) {
  const absl::Time deadline = absl::Now() + time;
  while (true) {
    const ReadyWrite result = WriteReady(fd, rest);
    if (result != ReadyWrite::kBlocked) return result;
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return ReadyWrite::kBlocked;
    HasRoom(fd, left + absl::Milliseconds(1));
  }
}

}  // namespace gpumemd
