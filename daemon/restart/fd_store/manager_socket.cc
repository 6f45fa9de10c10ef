// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/fd_store/manager_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

// Retry interval if the kernel offers no event to wait for.
constexpr absl::Duration kRetry = absl::Milliseconds(1);
// Deadline while too many descriptors are in queues. A manager takes descriptors out of its queue
// sooner; those that stay longer stay for good.
constexpr absl::Duration kInQueues = absl::Seconds(1);

bool IsGone(int error) {
  return error == ECONNREFUSED || error == ECONNRESET || error == ENOENT || error == ENOTCONN ||
         error == EPIPE;
}

absl::Status SendError(int error) {
  if (IsGone(error)) {
    return absl::UnavailableError("the service manager has closed its notify socket");
  }
  switch (error) {
    case ENOBUFS:
    case ENOMEM:
      return absl::ResourceExhaustedError("the kernel has no memory for a message to the manager");
    case EBADF:
      return absl::InvalidArgumentError("a descriptor to store is not open");
    default:
      return absl::ErrnoToStatus(error, "cannot send to the service manager");
  }
}

// Waits until the manager's queue may have room. Late: DEADLINE_EXCEEDED.
absl::Status WaitForRoom(int socket, absl::Time deadline) {
  const absl::Duration left = deadline - absl::Now();
  if (left <= absl::ZeroDuration()) {
    return absl::DeadlineExceededError(
        "the service manager does not read its notify socket; it is stuck or overloaded");
  }
  pollfd room = {socket, POLLOUT, 0};
  timespec timeout = absl::ToTimespec(std::min(left, absl::Hours(1)));
  if (::ppoll(&room, 1, &timeout, nullptr) < 0 && errno != EINTR) {
    return absl::ErrnoToStatus(errno, "cannot wait for the service manager");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ManagerSocket> ManagerSocket::Connect(const std::string& address) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  const bool is_abstract = !address.empty() && address[0] == '@';
  if (address.size() < 2 || (address[0] != '/' && !is_abstract) ||
      address.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "NOTIFY_SOCKET is \"", address, "\", which is not an address of a unix socket: it must be ",
        "an absolute path or \"@\" and a name, of at most ", sizeof(name.sun_path) - 1, " bytes"));
  }
  memcpy(name.sun_path, address.data(), address.size());
  if (is_abstract) name.sun_path[0] = '\0';
  // An abstract name ends where its length says, not at a zero (unix(7)).
  const socklen_t size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size() +
                                                (is_abstract ? 0 : 1));
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return absl::ErrnoToStatus(errno, "cannot make a unix socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), size) < 0) {
    const int error = errno;
    if (IsGone(error)) {
      return absl::UnavailableError(
          absl::StrCat("no service manager listens on NOTIFY_SOCKET, \"", address, "\""));
    }
    return absl::ErrnoToStatus(error,
                               absl::StrCat("cannot connect to NOTIFY_SOCKET, \"", address, "\""));
  }
  return ManagerSocket(std::move(socket));
}

absl::Status ManagerSocket::Send(absl::string_view message, absl::Span<const int> fds,
                                 absl::Time deadline) const {
  if (fds.size() > gpumem::kMaxMessageFds) {
    return absl::InvalidArgumentError(absl::StrCat(
        "one message carries at most ", gpumem::kMaxMessageFds, " descriptors, not ", fds.size()));
  }
  iovec bytes = {const_cast<char*>(message.data()), message.size()};
  msghdr header = {};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  const absl::Time give_up = std::min(deadline, absl::Now() + kInQueues);
  while (true) {
    if (::sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      return absl::OkStatus();
    }
    switch (errno) {
      case EINTR:
        continue;
      case EAGAIN:
        break;
      case ETOOMANYREFS:
        // Too many of this user's descriptors are in queues, here or elsewhere (unix(7)).
        if (absl::Now() >= give_up) {
          return absl::ResourceExhaustedError(
              "too many of this user's file descriptors are in the queues of sockets; raise the "
              "limit of open files");
        }
        absl::SleepFor(kRetry);
        continue;
      default:
        return SendError(errno);
    }
    if (absl::Status waited = WaitForRoom(socket_.get(), deadline); !waited.ok()) return waited;
  }
}

}  // namespace gpumemd
