// SPDX-License-Identifier: Apache-2.0
#include "client/web/peers/peer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gpumem::web {
namespace {

constexpr size_t kMostUrl = 1024;

bool IsVisible(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; });
}

// A token of HTTP (RFC 9110, 5.6.2).
bool IsToken(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) ||
           absl::StrContains("!#$%&'*+-.^_`|~",
                             absl::string_view(reinterpret_cast<const char*>(&c), 1));
  });
}

bool IsHost(absl::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_' || c == ':';
  });
}

}  // namespace

absl::StatusOr<Peer> ParsePeer(absl::string_view url) {
  const absl::Status error = absl::InvalidArgumentError(
      absl::StrCat("\"", url, "\" is neither http[s]://HOST[:PORT][/PATH] nor unix:PATH"));
  Peer peer{.url = std::string(url)};
  absl::string_view rest = url;
  if (url.size() > kMostUrl || !IsVisible(url)) return error;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    peer.unix_path = std::string(rest);
    peer.host = "localhost";
    if (rest.empty() || rest.front() != '/' || rest.size() > 107) return error;
    return peer;
  }
  peer.tls = absl::ConsumePrefix(&rest, "https://");
  if (!peer.tls && !absl::ConsumePrefix(&rest, "http://")) return error;
  const size_t slash = std::min(rest.find('/'), rest.size());
  peer.path = std::string(absl::StripSuffix(rest.substr(slash), "/"));
  if (absl::StrContains(peer.path, '?') || absl::StrContains(peer.path, '#')) return error;
  rest = rest.substr(0, slash);
  absl::string_view port;
  if (absl::ConsumePrefix(&rest, "[")) {
    const size_t bracket = rest.find(']');
    if (bracket == absl::string_view::npos) return error;
    port = rest.substr(bracket + 1);
    rest = rest.substr(0, bracket);
    if (!absl::StrContains(rest, ':')) return error;
  } else {
    const size_t colon = std::min(rest.find(':'), rest.size());
    port = rest.substr(colon);
    rest = rest.substr(0, colon);
  }
  if (!IsHost(rest)) return error;
  peer.host = std::string(rest);
  peer.port = peer.tls ? 443 : 80;
  uint32_t number = peer.port;
  if (!port.empty() && (!absl::ConsumePrefix(&port, ":") || !absl::SimpleAtoi(port, &number) ||
                        number == 0 || number > 65535)) {
    return error;
  }
  peer.port = static_cast<uint16_t>(number);
  return peer;
}

absl::Status AddHeaders(absl::string_view text, std::vector<Peer>* peers) {
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(absl::ByAnyChar(" \t"), 1));
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(parts.second, absl::MaxSplits(':', 1));
    const absl::string_view name = absl::StripAsciiWhitespace(field.first);
    const absl::string_view value = absl::StripAsciiWhitespace(field.second);
    // The messages do not quote the line: it has a secret.
    if (!IsToken(name) || value.empty() ||
        std::any_of(value.begin(), value.end(), absl::ascii_iscntrl)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " of the headers is not \"URL NAME: VALUE\""));
    }
    bool found = false;
    for (Peer& peer : *peers) {
      if (parts.first != "*" && parts.first != peer.url) continue;
      peer.headers.emplace_back(name, value);
      found = true;
    }
    if (!found) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " of the headers names no peer"));
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumem::web
