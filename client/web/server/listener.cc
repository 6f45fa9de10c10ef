// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/unix_channel.h"

namespace gpumem::web {
namespace {

constexpr int kFirst = 3;  // SD_LISTEN_FDS_START
constexpr int kMost = 64;  // more are a mistake
constexpr int kBacklog = 1024;

union Address {
  sockaddr any;
  sockaddr_in four;
  sockaddr_in6 six;
  sockaddr_un file;
};

bool IsLoopback(const Address& address) {
  if (address.any.sa_family == AF_INET) {
    return ntohl(address.four.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return address.any.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&address.six.sin6_addr);
}

absl::Status NotLoopback(absl::string_view where) {
  return absl::InvalidArgumentError(absl::StrCat(
      where,
      " is not an address of the loopback interface, such as 127.0.0.1 or [::1]. For remote "
      "use, put a reverse proxy with TLS and login before the unix socket."));
}

// Returns the address of a TCP socket, as URLs have it.
std::string TextOf(const Address& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.any.sa_family == AF_INET) {
    inet_ntop(AF_INET, &address.four.sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(address.four.sin_port));
  }
  inet_ntop(AF_INET6, &address.six.sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]:", ntohs(address.six.sin6_port));
}

// Describes a bound socket. Empty `where`: it is of another family.
Listener Describe(UniqueFd socket, Address* address) {
  Listener listener{.socket = std::move(socket)};
  socklen_t length = sizeof(*address);
  if (getsockname(listener.socket.get(), &address->any, &length) != 0) return listener;
  if (address->any.sa_family == AF_UNIX) {
    const size_t size = length - offsetof(sockaddr_un, sun_path);
    const std::string path(address->file.sun_path, size);
    listener.where = absl::StrCat("unix:", path.c_str());
  } else if (address->any.sa_family == AF_INET || address->any.sa_family == AF_INET6) {
    listener.where = TextOf(*address);
    listener.origin = absl::StrCat("http://", listener.where);
  }
  return listener;
}

absl::StatusOr<Listener> ListenOnFile(const std::string& path) {
  absl::StatusOr<UniqueFd> socket = ListenUnix(path, SOCK_STREAM, 0600);
  if (!socket.ok()) return socket.status();
  return Listener{.socket = *std::move(socket), .where = absl::StrCat("unix:", path), .file = path};
}

// Reads "ADDRESS:PORT".
absl::StatusOr<std::pair<Address, socklen_t>> ParseAddress(const std::string& text) {
  const absl::Status error = absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is neither unix:PATH nor ADDRESS:PORT"));
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
      port > 65535) {
    return error;
  }
  std::string host = text.substr(0, colon);
  Address address = {};
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
    if (inet_pton(AF_INET6, host.c_str(), &address.six.sin6_addr) != 1) return error;
    address.six.sin6_family = AF_INET6;
    address.six.sin6_port = htons(static_cast<uint16_t>(port));
    return std::pair(address, static_cast<socklen_t>(sizeof(address.six)));
  }
  if (inet_pton(AF_INET, host.c_str(), &address.four.sin_addr) != 1) return error;
  address.four.sin_family = AF_INET;
  address.four.sin_port = htons(static_cast<uint16_t>(port));
  return std::pair(address, static_cast<socklen_t>(sizeof(address.four)));
}

absl::StatusOr<Listener> ListenTcp(const std::string& text) {
  auto parsed = ParseAddress(text);
  if (!parsed.ok()) return parsed.status();
  auto& [address, length] = *parsed;
  if (!IsLoopback(address)) return NotLoopback(text);
  UniqueFd fd(socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Does not wait until the connections of an earlier program are forgotten (socket(7)).
  const int on = 1;
  if (!fd.valid() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd.get(), &address.any, length) != 0 || listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    return absl::ErrnoToStatus(error, absl::StrCat("cannot listen on ", text));
  }
  return Describe(std::move(fd), &address);
}

int OptionOf(int socket, int option) {
  int value = -1;
  socklen_t size = sizeof(value);
  return getsockopt(socket, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

// Takes one that systemd has passed.
absl::StatusOr<Listener> Take(int fd) {
  UniqueFd socket(fd);
  if (OptionOf(fd, SO_TYPE) != SOCK_STREAM || OptionOf(fd, SO_ACCEPTCONN) != 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "descriptor ", fd, " is no listening stream socket (ListenStream=, Accept=no)"));
  }
  Address address = {};
  Listener listener = Describe(std::move(socket), &address);
  if (listener.where.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("descriptor ", fd, " is neither a unix socket nor one of TCP"));
  }
  if (!listener.origin.empty() && !IsLoopback(address)) {
    return absl::FailedPreconditionError(NotLoopback(listener.where).message());
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  return listener;
}

std::string TakeVariable(const char* name) {
  const char* const value = std::getenv(name);
  std::string taken = value == nullptr ? "" : value;
  unsetenv(name);
  return taken;
}

}  // namespace

absl::StatusOr<Listener> Listen(const std::string& text) {
  absl::string_view path = text;
  if (absl::ConsumePrefix(&path, "unix:")) return ListenOnFile(std::string(path));
  return ListenTcp(text);
}

absl::StatusOr<std::vector<Listener>> TakeListeners() {
  const std::string pid = TakeVariable("LISTEN_PID"), count_text = TakeVariable("LISTEN_FDS");
  TakeVariable("LISTEN_FDNAMES");
  std::vector<Listener> listeners;
  // Another process was meant if it names another.
  if (pid.empty() || pid != absl::StrCat(getpid())) return listeners;
  int count = 0;
  if (!absl::SimpleAtoi(count_text, &count) || count < 0 || count > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("LISTEN_FDS is \"", count_text, "\", which is no number of sockets"));
  }
  for (int fd = kFirst; fd < kFirst + count; ++fd) {
    absl::StatusOr<Listener> listener = Take(fd);
    if (!listener.ok()) return listener.status();
    listeners.push_back(*std::move(listener));
  }
  return listeners;
}

}  // namespace gpumem::web
