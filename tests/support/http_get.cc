// SPDX-License-Identifier: Apache-2.0
#include "tests/support/http_get.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"

namespace gpumem::testing {
namespace {

absl::StatusOr<UniqueFd> ConnectTcp(absl::string_view host_and_port) {
  const size_t colon = host_and_port.rfind(':');
  sockaddr_in address = {.sin_family = AF_INET};
  uint32_t port = 0;
  if (colon == absl::string_view::npos ||
      inet_pton(AF_INET, std::string(host_and_port.substr(0, colon)).c_str(), &address.sin_addr) !=
          1 ||
      !absl::SimpleAtoi(host_and_port.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat(host_and_port, " is no address and port"));
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(absl::StrCat(host_and_port, ": ", strerror(errno)));
  }
  return fd;
}

}  // namespace

absl::StatusOr<HttpAnswer> HttpGet(absl::string_view url) {
  absl::StatusOr<UniqueFd> fd = absl::InvalidArgumentError(absl::StrCat(url, " is no URL"));
  std::string target = "/metrics";
  if (absl::ConsumePrefix(&url, "unix:")) {
    const size_t colon = url.find(':');
    if (colon != absl::string_view::npos) target = std::string(url.substr(colon + 1));
    fd = ConnectUnix(std::string(url.substr(0, colon)), SOCK_STREAM);
  } else if (absl::ConsumePrefix(&url, "http://")) {
    const size_t slash = url.find('/');
    target = slash == absl::string_view::npos ? "/" : std::string(url.substr(slash));
    fd = ConnectTcp(url.substr(0, slash));
  }
  if (!fd.ok()) return fd.status();
  const timeval patience{.tv_sec = 60};
  setsockopt(fd->get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  // Without chunks, and closed at its end.
  const std::string request = absl::StrCat("GET ", target, " HTTP/1.0\r\nHost: localhost\r\n\r\n");
  if (send(fd->get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return absl::UnavailableError("the request could not be sent");
  }
  std::string text;
  char buffer[16 * 1024];
  ssize_t got = 0;
  while ((got = recv(fd->get(), buffer, sizeof(buffer), 0)) > 0) {
    text.append(buffer, static_cast<size_t>(got));
  }
  const size_t end = text.find("\r\n\r\n");
  HttpAnswer answer;
  if (got != 0 || end == std::string::npos || text.size() < 12 ||
      !absl::SimpleAtoi(text.substr(9, 3), &answer.code)) {
    return absl::UnavailableError(absl::StrCat("no whole answer came: ", text));
  }
  answer.headers = text.substr(0, end + 2);
  answer.body = text.substr(end + 4);
  return answer;
}

std::string UrlEncode(absl::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      encoded += c;
    } else {
      absl::StrAppend(&encoded, "%", absl::BytesToHexString(absl::string_view(&c, 1)));
    }
  }
  return encoded;
}

}  // namespace gpumem::testing
