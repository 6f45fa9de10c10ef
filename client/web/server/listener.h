// SPDX-License-Identifier: Apache-2.0
// The sockets that the server listens on: made by this program, or passed by systemd.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/unique_fd.h"

namespace gpumem::web {

// A listening stream socket, close-on-exec, non-blocking.
struct Listener {
  UniqueFd socket;
  std::string where;   // for people: unix:PATH or 127.0.0.1:PORT
  std::string origin;  // of URLs: http://127.0.0.1:PORT; empty: a unix socket
  std::string file;    // that this program made, and removes; or empty
};

// Listens on `unix:PATH`, with mode 0600, or on `ADDRESS:PORT` of the loopback interface. Port 0 is
// any free one.
//   INVALID_ARGUMENT  the text is neither, or the address is not a loopback address
//   ALREADY_EXISTS    another process listens there
//   others            as the operating system says
absl::StatusOr<Listener> Listen(const std::string& text);

// Takes the sockets that systemd has passed (sd_listen_fds(3)), none if there are none. Removes its
// variables from the environment.
//   INVALID_ARGUMENT     the variables contradict each other
//   FAILED_PRECONDITION  one is no listening stream socket, or listens beyond loopback
absl::StatusOr<std::vector<Listener>> TakeListeners();

}  // namespace gpumem::web
