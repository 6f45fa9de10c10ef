// SPDX-License-Identifier: Apache-2.0
// A client that sends what the test says, byte by byte if need be.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"

namespace gpumem::web {

class RawClient {
 public:
  explicit RawClient(const std::string& path) {
    auto connected = ConnectUnix(path, SOCK_STREAM);
    EXPECT_TRUE(connected.ok()) << connected.status();
    if (connected.ok()) Use(*std::move(connected));
  }
  // Connects to a port of 127.0.0.1.
  explicit RawClient(uint16_t port) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    Use(std::move(fd));
  }

  // False if the server has closed.
  bool Say(absl::string_view words) {
    while (!words.empty()) {
      const ssize_t sent = send(fd_.get(), words.data(), words.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      words.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  void EndSending() { shutdown(fd_.get(), SHUT_WR); }

  // Returns all data until the server closes.
  std::string HearAll() {
    while (Receive()) continue;
    EXPECT_TRUE(errno == 0 || errno == ECONNRESET) << "it was not closed";
    return std::exchange(heard_, "");
  }
  // Returns the data up to the end of these words; what came if the server closes before.
  std::string HearUpTo(const std::string& words) {
    size_t at = 0;
    const absl::Time end = absl::Now() + absl::Seconds(kPatience);
    while ((at = heard_.find(words)) == std::string::npos) {
      if (absl::Now() > end || !Receive()) return std::exchange(heard_, "");
    }
    std::string text = heard_.substr(0, at + words.size());
    heard_.erase(0, at + words.size());
    return text;
  }
  // Returns one answer with a length.
  std::string HearAnswer() {
    std::string head = HearUpTo("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    size_t length = 0;
    if (at == std::string::npos ||
        !absl::SimpleAtoi(head.substr(at + 16, head.find('\r', at) - at - 16), &length)) {
      return head;
    }
    while (heard_.size() < length && Receive()) continue;
    absl::StrAppend(&head, heard_.substr(0, length));
    heard_.erase(0, length);
    return head;
  }
  // Returns the answer to a GET. `fields` end with "\r\n" each.
  std::string Get(absl::string_view path, absl::string_view fields = "") {
    Say(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n", fields, "\r\n"));
    return HearAnswer();
  }
  std::string Post(absl::string_view path, absl::string_view body) {
    Say(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(),
                     "\r\n\r\n", body));
    return HearAnswer();
  }
  // True if the server has closed the connection, or does so soon.
  bool IsClosed() {
    while (Receive()) continue;
    return errno == 0 || errno == ECONNRESET;
  }
  // True if the server has not closed the connection yet.
  bool IsOpen() {
    char byte = 0;
    const ssize_t got = recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got > 0 || (got < 0 && errno == EAGAIN);
  }
  int fd() const { return fd_.get(); }

 private:
  void Use(UniqueFd fd) {
    fd_ = std::move(fd);
    // A test that waits in vain fails, and does not hang.
    const timeval patience{.tv_sec = kPatience};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  }
  // Receives more. False at the end (errno 0) or an error.
  bool Receive() {
    char buffer[16 * 1024];
    errno = 0;
    const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), 0);
    if (got <= 0) return false;
    heard_.append(buffer, static_cast<size_t>(got));
    return true;
  }

  static constexpr int kPatience = 30;  // seconds

  UniqueFd fd_;
  std::string heard_;
};

// Returns the body of an answer.
inline std::string BodyOf(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

}  // namespace gpumem::web
