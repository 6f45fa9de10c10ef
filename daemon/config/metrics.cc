// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/config/forms.h"

namespace gpumemd {
namespace {

struct Listen {
  std::string unix_path;
  std::string address;
  uint16_t port = 0;
};

// Addresses, and no names, since a name's address may change.
bool IsAddress(const std::string& text) {
  in6_addr parsed;
  return inet_pton(AF_INET, text.c_str(), &parsed) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &parsed) == 1;
}

// True if only this machine reaches it.
bool IsLoopback(const std::string& text) {
  in_addr four;
  if (inet_pton(AF_INET, text.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  in6_addr six;
  return inet_pton(AF_INET6, text.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

std::optional<Listen> AsListen(const toml::value& value) {
  if (!value.is_string()) return std::nullopt;
  absl::string_view text = value.as_string().str;
  if (text.empty()) return Listen{};
  if (absl::ConsumePrefix(&text, "unix:")) {
    if (!absl::StartsWith(text, "/")) return std::nullopt;
    return Listen{.unix_path = std::string(text)};
  }
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return std::nullopt;
  absl::string_view host = text.substr(0, colon);
  const bool in_brackets = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  Listen listen{.address = std::string(host)};
  uint32_t port = 0;
  if (!IsAddress(listen.address) || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
      port > UINT16_MAX || in_brackets != absl::StrContains(listen.address, ':')) {
    return std::nullopt;
  }
  listen.port = static_cast<uint16_t>(port);
  return listen;
}

}  // namespace

void ReadMetrics(const toml::value& table, const NameLookup& names, Mistakes* mistakes,
                 MetricsConfig* config) {
  TableReader reader(table, "metrics", mistakes);
  Listen listen;
  bool allow_remote = false;
  reader.Read("listen",
              Form<Listen>{"an address to listen on",
                           "\"unix:/run/gpumem/metrics.sock\", \"127.0.0.1:9400\", "
                           "\"[::1]:9400\", or \"\" for none",
                           AsListen},
              &listen);
  reader.Read("allow_remote", BoolForm(), &allow_remote);
  reader.Read("max_tenants", CountForm(1, 100'000), &config->max_tenants);
  reader.Read("socket_mode", ModeForm(), &config->socket_mode);
  config->socket_gid = ReadGroup("socket_group", names, &reader);
  if (!listen.address.empty() && !allow_remote && !IsLoopback(listen.address)) {
    reader.Complain(*reader.Find("listen"), "listen",
                    absl::StrCat("other machines can reach ", listen.address,
                                 ", and read the names and the usage of all tenants; set "
                                 "allow_remote = true to permit that"));
  }
  config->unix_path = listen.unix_path;
  config->address = listen.address;
  config->port = listen.port;
  reader.Finish();
}

}  // namespace gpumemd
