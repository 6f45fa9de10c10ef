// SPDX-License-Identifier: Apache-2.0
#include "common/unix_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gpumem {
namespace {

absl::Status OsError(int error, absl::string_view what) { return absl::ErrnoToStatus(error, what); }

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // One byte stays for the terminating zero.
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", path, "\" cannot be a unix socket: its path has to be 1 to ",
                     sizeof(address.sun_path) - 1, " bytes long; choose a shorter folder"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

int Connect(int socket, const sockaddr_un& address) {
  int result;
  do {
    result = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (result < 0 && errno == EINTR);
  return result < 0 ? errno : 0;
}

int Bind(int socket, const sockaddr_un& address) {
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0 ? errno
                                                                                          : 0;
}

// Removes the socket file at `path` if no process listens on it.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address, int type) {
  struct stat info;
  if (::lstat(path.c_str(), &info) < 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return OsError(errno, absl::StrCat("cannot look at ", path));
  }
  // connect() refuses plain files with the same code as stale sockets.
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " exists and is not a socket; move it away or choose another folder"));
  }
  UniqueFd probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return OsError(errno, "cannot make a unix socket");
  if (Connect(probe.get(), address) != ECONNREFUSED) {
    return absl::AlreadyExistsError(
        absl::StrCat("another process listens on ", path, "; stop it or choose another folder"));
  }
  if (::unlink(path.c_str()) < 0 && errno != ENOENT) {
    return OsError(errno, absl::StrCat("cannot remove the stale socket ", path));
  }
  return absl::OkStatus();
}

// Held while a socket file is judged and replaced. Without it, two daemons that start
// together could each take the other's socket, bound but not yet listening, for stale.
class PathLock {
 public:
  static absl::StatusOr<PathLock> Take(const std::string& path) {
    PathLock lock;
    lock.file_ = absl::StrCat(path, ".lock");
    while (true) {
      lock.fd_.reset(::open(lock.file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
      if (!lock.fd_.valid()) return OsError(errno, absl::StrCat("cannot open ", lock.file_));
      while (::flock(lock.fd_.get(), LOCK_EX) < 0) {
        if (errno != EINTR) return OsError(errno, absl::StrCat("cannot lock ", lock.file_));
      }
      // The holder before us removed the file; only a lock on the present one counts.
      struct stat locked, present;
      if (::fstat(lock.fd_.get(), &locked) == 0 && ::lstat(lock.file_.c_str(), &present) == 0 &&
          locked.st_ino == present.st_ino && locked.st_dev == present.st_dev) {
        return lock;
      }
    }
  }
  PathLock(PathLock&&) = default;
  ~PathLock() {
    if (fd_.valid()) ::unlink(file_.c_str());
  }

 private:
  PathLock() = default;
  std::string file_;
  UniqueFd fd_;
};

// Waits for `events` on the socket. An error on it counts as readiness, since the next call on the
// socket returns it.
absl::Status WaitFor(int socket, short events, absl::Time deadline, absl::string_view late) {
  while (true) {
    pollfd poll_fd = {socket, events, 0};
    timespec timeout = {};
    timespec* wait = nullptr;
    if (deadline != absl::InfiniteFuture()) {
      timeout = absl::ToTimespec(std::max(deadline - absl::Now(), absl::ZeroDuration()));
      wait = &timeout;
    }
    const int ready = ::ppoll(&poll_fd, 1, wait, nullptr);
    if (ready > 0) return absl::OkStatus();
    if (ready == 0) return absl::DeadlineExceededError(late);
    if (errno != EINTR) return OsError(errno, "cannot wait on a unix socket");
  }
}

absl::Status SendError(int error) {
  switch (error) {
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
      return absl::UnavailableError("the peer has closed the connection");
    case EMSGSIZE:
      return absl::InvalidArgumentError(
          "the message does not fit into the socket's send buffer; make it smaller");
    case ETOOMANYREFS:
      // The kernel counts descriptors that are sent and not yet received, per user.
      return absl::ResourceExhaustedError(
          "too many file descriptors are on their way to processes that do not receive them; "
          "raise the limit on open files or wait until they are received");
    case ENOBUFS:
    case ENOMEM:
      return absl::ResourceExhaustedError("the kernel has no memory for the message");
    default:
      return OsError(error, "cannot send on a unix socket");
  }
}

std::vector<UniqueFd> TakeFds(msghdr* header) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;  // the control data need not be aligned for int
      memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

absl::StatusOr<UniqueFd> ListenUnix(const std::string& path, int type, unsigned mode) {
  absl::StatusOr<sockaddr_un> address = AddressOf(path);
  if (!address.ok()) return address.status();
  UniqueFd listener(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return OsError(errno, "cannot make a unix socket");

  absl::StatusOr<PathLock> lock = PathLock::Take(path);
  if (!lock.ok()) return lock.status();
  int error = Bind(listener.get(), *address);
  if (error == EADDRINUSE) {
    if (absl::Status status = RemoveStale(path, *address, type); !status.ok()) return status;
    error = Bind(listener.get(), *address);
  }
  if (error != 0) return OsError(error, absl::StrCat("cannot bind ", path));

  // Connecting before listen() is impossible, so no process slips in under the umask's mode.
  if (::chmod(path.c_str(), mode) < 0 || ::listen(listener.get(), SOMAXCONN) < 0) {
    error = errno;
    ::unlink(path.c_str());
    return OsError(error, absl::StrCat("cannot listen on ", path));
  }
  return listener;
}

absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path, int type, absl::Time deadline,
                                     bool named) {
  absl::StatusOr<sockaddr_un> address = AddressOf(path);
  if (!address.ok()) return address.status();
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return OsError(errno, "cannot make a unix socket");

  if (named) {
    // Only the family: the kernel chooses a name. Without one it works as well.
    const sockaddr_un any = {.sun_family = AF_UNIX, .sun_path = {}};
    (void)::bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(sa_family_t));
  }

  // connect() waits while the listener's queue is full, for as long as a send may take.
  if (deadline != absl::InfiniteFuture()) {
    // A zero timeout would mean forever.
    const absl::Duration left = std::max(deadline - absl::Now(), absl::Milliseconds(1));
    const timeval limit = absl::ToTimeval(left);
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  }
  const int error = Connect(socket.get(), *address);
  const timeval forever = {};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &forever, sizeof(forever));
  switch (error) {
    case 0:
      return socket;
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
      return absl::UnavailableError(absl::StrCat("nobody listens on ", path));
    case EAGAIN:
      return absl::DeadlineExceededError(
          absl::StrCat("the process that listens on ", path, " does not accept connections"));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(
          absl::StrCat("this user may not connect to ", path, "; its mode keeps others out"));
    case EPROTOTYPE:
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is a unix socket of another type; is it another program's?"));
    default:
      return OsError(error, absl::StrCat("cannot connect to ", path));
  }
}

absl::Status SendMessage(int socket, absl::string_view bytes, absl::Span<const int> fds,
                         absl::Time deadline) {
  // A packet of no bytes looks like the end of the connection to its receiver.
  if (bytes.empty() || bytes.size() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message has 1 to ", kMaxMessageBytes, " bytes, this one ", bytes.size()));
  }
  if (fds.size() > kMaxMessageFds) {
    return absl::InvalidArgumentError(absl::StrCat("a message carries at most ", kMaxMessageFds,
                                                   " descriptors, this one ", fds.size()));
  }
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxMessageFds * sizeof(int))];
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    memset(control, 0, header.msg_controllen);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  while (true) {
    if (::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return absl::OkStatus();
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return SendError(errno);
    absl::Status status = WaitFor(socket, POLLOUT, deadline, "the peer does not read its messages");
    if (!status.ok()) return status;
  }
}

absl::StatusOr<UnixMessage> ReceiveMessage(int socket, absl::Time deadline) {
  // Room for the largest message; the kernel flags excess.
  char bytes[kMaxMessageBytes];
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxMessageFds * sizeof(int))];
  while (true) {
    iovec part = {bytes, sizeof(bytes)};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t size = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size < 0) {
      // ECONNRESET (the peer closed before it read everything) is reported once, before the
      // messages that the peer sent earlier. The next call gets those, or the end.
      if (errno == EINTR || errno == ECONNRESET) continue;
      if (errno != EAGAIN) return OsError(errno, "cannot receive on a unix socket");
      absl::Status status = WaitFor(socket, POLLIN, deadline, "no message came in time");
      if (!status.ok()) return status;
      continue;
    }
    UnixMessage message;
    message.fds = TakeFds(&header);  // before any refusal, so that they are closed with it
    if ((header.msg_flags & MSG_TRUNC) != 0) {
      return absl::DataLossError(
          absl::StrCat("a message was larger than ", kMaxMessageBytes, " bytes"));
    }
    if ((header.msg_flags & MSG_CTRUNC) != 0) {
      return absl::DataLossError(
          "not all descriptors of a message could be taken; is this process at its limit of open "
          "files (ulimit -n)?");
    }
    // A packet of no bytes and the end of the connection look alike; SendMessage sends no
    // such packet, so a peer that does is treated as gone.
    if (size == 0) return absl::UnavailableError("the peer has closed the connection");
    message.bytes.assign(bytes, static_cast<size_t>(size));
    return message;
  }
}

}  // namespace gpumem
