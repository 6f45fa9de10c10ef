// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/origin.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gpumem::web {
namespace {

// Removes ":PORT" from the end. False if it is no port.
bool ConsumePort(absl::string_view* host) {
  // Colons in brackets are the address's.
  const size_t bracket = host->rfind(']');
  const size_t colon = host->rfind(':');
  if (colon == absl::string_view::npos || (bracket != absl::string_view::npos && colon < bracket)) {
    return true;
  }
  const absl::string_view port = host->substr(colon + 1);
  *host = host->substr(0, colon);
  return !port.empty() && port.size() <= 5 &&
         std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
}

bool IsOurs(absl::string_view host, const std::vector<std::string>& hosts) {
  if (!ConsumePort(&host)) return false;
  const std::string name = absl::AsciiStrToLower(host);
  return name == "localhost" || name == "127.0.0.1" || name == "[::1]" ||
         std::find(hosts.begin(), hosts.end(), name) != hosts.end();
}

}  // namespace

Sender CheckSender(const SenderFields& fields, const std::vector<std::string>& hosts, bool page) {
  if (!fields.host.has_value() || !IsOurs(*fields.host, hosts)) return Sender::kWrongHost;
  // The scheme may be the one of a proxy in front.
  if (fields.origin.has_value() &&
      !absl::EqualsIgnoreCase(*fields.origin, absl::StrCat("http://", *fields.host)) &&
      !absl::EqualsIgnoreCase(*fields.origin, absl::StrCat("https://", *fields.host))) {
    return Sender::kOtherSite;
  }
  // Older browsers do not send it. What they send for other sites has an Origin, or is a GET whose
  // answer they do not show to the other site.
  if (!fields.fetch_site.has_value()) return Sender::kAdmitted;
  const std::string& site = *fields.fetch_site;
  if (site == "same-origin" || site == "none") return Sender::kAdmitted;
  const bool link = page && fields.fetch_mode == "navigate" && fields.fetch_dest == "document";
  return link ? Sender::kAdmitted : Sender::kOtherSite;
}

bool IsHostName(absl::string_view name) {
  if (name.empty() || name.size() > 253) return false;
  if (name.front() == '[' && name.back() == ']') {
    name = name.substr(1, name.size() - 2);
    return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return absl::ascii_isxdigit(c) || c == ':' || c == '.';
    });
  }
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
  });
}

}  // namespace gpumem::web
