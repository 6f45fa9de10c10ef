// SPDX-License-Identifier: Apache-2.0
// What a tenant that has ended still has, for logs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "proto/gpumem/v1/tenant.pb.h"

namespace gpumem {

// Returns "1.00 GiB on GPU-… held by pid 17 python3, pid 18"; of four processes at most. `commands`
// are those that are known, by pid.
inline std::string HeldInWords(const v1::EndTenantResponse& held,
                               const std::map<int32_t, std::string>& commands = {}) {
  constexpr size_t kMostNamed = 4;
  std::vector<std::string> what, who;
  for (const v1::HeldBytes& device : held.devices()) {
    what.push_back(absl::StrCat(FormatBytes(device.bytes()), " on ", device.device_uuid()));
  }
  for (const v1::HeldBySession& session : held.sessions()) {
    if (who.size() == kMostNamed) {
      who.emplace_back("...");
      break;
    }
    const auto command = commands.find(session.pid());
    who.push_back(command == commands.end()
                      ? absl::StrCat("pid ", session.pid())
                      : absl::StrCat("pid ", session.pid(), " ", command->second));
  }
  return absl::StrCat(what.empty() ? "no memory" : absl::StrJoin(what, ", "), " held by ",
                      who.empty() ? "no process" : absl::StrJoin(who, ", "));
}

}  // namespace gpumem
