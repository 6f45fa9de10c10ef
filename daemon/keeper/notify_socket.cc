// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/notify_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace gpumemd::keeper {
namespace {

using gpumem::UniqueFd;

constexpr size_t kMaxFds = 253;  // SCM_MAX_FD in the Linux kernel: the limit of one message
constexpr char kSocketName[] = "/notify";

// The address, by sd_notify(3): "@" stands for the zero of an abstract name. Its length, or 0.
socklen_t MakeAddress(const std::string& path, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  if (path.size() < 2 || path.size() >= sizeof(address.sun_path)) return 0;
  if (path[0] != '/' && path[0] != '@') return 0;
  memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() +
                                (path[0] == '/' ? 1 : 0));
}

UniqueFd NewSocket() {
  return UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// A new folder in the first place that allows one; empty: none does.
std::string MakeFolder() {
  std::vector<std::string> places;
  for (const char* variable : {"TMPDIR", "XDG_RUNTIME_DIR"}) {
    const char* place = getenv(variable);
    if (place != nullptr && place[0] == '/') places.emplace_back(place);
  }
  places.insert(places.end(), {"/run", "/tmp"});
  for (std::string& place : places) {
    place += "/gpumem-keeper-XXXXXX";
    if (place.size() + sizeof(kSocketName) > sizeof(sockaddr_un::sun_path)) continue;
    if (mkdtemp(place.data()) != nullptr) return place;
  }
  return "";
}

}  // namespace

std::optional<NotifySocket> NotifySocket::Make(std::string& error) {
  const std::string folder = MakeFolder();
  if (folder.empty()) {
    error =
        "no folder for the daemon's socket: neither $TMPDIR nor $XDG_RUNTIME_DIR, /run or /tmp can "
        "be written, or their names are too long; set TMPDIR";
    return std::nullopt;
  }
  NotifySocket made(folder + kSocketName, NewSocket());
  sockaddr_un address;
  const socklen_t size = MakeAddress(made.path_, address);
  const int on = 1;
  if (!made.socket_.valid() || size == 0 ||
      bind(made.fd(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      setsockopt(made.fd(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
    error = "cannot make the socket " + made.path_ + ": " + strerror(errno);
    return std::nullopt;
  }
  return made;
}

NotifySocket::NotifySocket(NotifySocket&& other) noexcept
    : path_(std::exchange(other.path_, "")), socket_(std::move(other.socket_)) {}

NotifySocket::~NotifySocket() {
  if (path_.empty()) return;
  unlink(path_.c_str());
  rmdir(path_.substr(0, path_.size() - strlen(kSocketName)).c_str());
}

std::optional<NotifySocket::Received> NotifySocket::Receive() {
  std::array<char, PIPE_BUF> text;  // what systemd reads, too
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(kMaxFds * sizeof(int))>
      control;
  iovec bytes = {text.data(), text.size()};
  msghdr header = {.msg_iov = &bytes,
                   .msg_iovlen = 1,
                   .msg_control = control.data(),
                   .msg_controllen = control.size()};
  ssize_t size;
  do {
    size = recvmsg(fd(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0) return std::nullopt;

  Received received;
  received.text.assign(text.data(), static_cast<size_t>(size));
  received.is_whole = (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SCM_CREDENTIALS) {
      ucred sender;
      memcpy(&sender, CMSG_DATA(c), sizeof(sender));
      received.sender = sender.pid;
    }
    if (c->cmsg_type == SCM_RIGHTS) {
      for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int one;
        memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        received.fds.emplace_back(one);
      }
    }
  }
  return received;
}

OuterManager::OuterManager() {
  const char* path = getenv("NOTIFY_SOCKET");
  if (path == nullptr) return;
  sockaddr_un address;
  const socklen_t size = MakeAddress(path, address);
  unsetenv("NOTIFY_SOCKET");
  if (size == 0) return;
  socket_ = NewSocket();
  if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    socket_.reset();
  }
}

void OuterManager::Say(std::string_view text) const {
  if (!socket_.valid() || text.empty()) return;
  (void)send(socket_.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace gpumemd::keeper
