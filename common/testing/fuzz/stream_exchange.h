// SPDX-License-Identifier: Apache-2.0
// Sends the bytes of a fuzz target to a server.
#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/strings/string_view.h"
#include "common/testing/fuzz/input.h"
#include "common/unix_channel.h"

namespace gpumem::testing {

// Sends all of `input` on a new connection to the socket `path`, in pieces of so many bytes (0: at
// once), closes that direction, and returns all that is answered.
inline std::string Exchange(const std::string& path, FuzzInput& input, size_t piece) {
  auto socket = ConnectUnix(path, SOCK_STREAM);
  FUZZ_CHECK(socket.ok());
  while (!input.empty()) {
    const absl::string_view part = input.Bytes(piece == 0 ? input.size() : piece);
    if (send(socket->get(), part.data(), part.size(), MSG_NOSIGNAL) < 0) break;
  }
  shutdown(socket->get(), SHUT_WR);
  std::string answer;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = recv(socket->get(), buffer, sizeof buffer, 0)) > 0) {
    answer.append(buffer, static_cast<size_t>(got));
  }
  return answer;
}

}  // namespace gpumem::testing
