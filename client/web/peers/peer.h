// SPDX-License-Identifier: Apache-2.0
// Another node's gpumem-web, as the administrator names it. Has no I/O.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::web {

struct Peer {
  std::string url;  // as named
  bool tls = false;
  std::string unix_path;  // of a unix socket; empty: TCP
  std::string host;       // a name or an address, without brackets
  uint16_t port = 0;
  std::string path;  // before /api/v1/overview; without a slash at the end
  std::vector<std::pair<std::string, std::string>> headers;  // of a proxy's login
};

// Parses http://HOST[:PORT][/PATH], https://… or unix:PATH.
//   INVALID_ARGUMENT  it is none
absl::StatusOr<Peer> ParsePeer(absl::string_view url);

// Gives headers to peers. Each line of `text` is "URL NAME: VALUE", with a peer's URL, or "*" for
// all peers; lines that are empty or begin with '#' count for nothing.
//   INVALID_ARGUMENT  a line is something else, or names no peer
absl::Status AddHeaders(absl::string_view text, std::vector<Peer>* peers);

}  // namespace gpumem::web
