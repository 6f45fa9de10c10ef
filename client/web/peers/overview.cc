// SPDX-License-Identifier: Apache-2.0
#include "client/web/peers/overview.h"

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"

namespace gpumem::web {
namespace {

using PeerJson = nlohmann::json;

constexpr size_t kMostText = 256;
constexpr size_t kMostDevices = 128;

void CopyText(const PeerJson& from, const char* name, PeerJson* to) {
  const auto member = from.find(name);
  if (member == from.end() || !member->is_string()) return;
  (*to)[name] = member->get_ref<const std::string&>().substr(0, kMostText);
}

void CopyNumber(const PeerJson& from, const char* name, PeerJson* to) {
  const auto member = from.find(name);
  if (member != from.end() && member->is_number_unsigned()) (*to)[name] = member->get<uint64_t>();
}

}  // namespace

absl::StatusOr<std::string> CleanOverview(absl::string_view text) {
  const PeerJson given =
      PeerJson::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!given.is_object()) return absl::InvalidArgumentError("its answer is no JSON object");
  const auto daemon = given.find("daemon");
  if (daemon == given.end() || (*daemon != "ok" && *daemon != "lost")) {
    return absl::InvalidArgumentError("its answer is no overview of gpumem-web");
  }
  PeerJson clean = {{"daemon", *daemon}, {"devices", PeerJson::array()}};
  CopyText(given, "node", &clean);
  CopyText(given, "version", &clean);
  for (const char* const count : {"tenants", "sessions", "waiting"}) {
    CopyNumber(given, count, &clean);
  }
  const auto devices = given.find("devices");
  if (devices != given.end() && devices->is_array()) {
    for (const PeerJson& device : *devices) {
      if (!device.is_object() || clean["devices"].size() >= kMostDevices) continue;
      PeerJson& copy = clean["devices"].emplace_back(PeerJson::object());
      CopyText(device, "uuid", &copy);
      CopyText(device, "name", &copy);
      for (const char* const number : {"index", "capacity_bytes", "charged_bytes"}) {
        CopyNumber(device, number, &copy);
      }
    }
  }
  // A text may be cut within a character.
  return clean.dump(-1, ' ', false, PeerJson::error_handler_t::replace);
}

}  // namespace gpumem::web
