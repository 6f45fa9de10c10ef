// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/device_list.h"

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gpumem::cli {

absl::StatusOr<std::string> ResolveDevice(const DeviceList& devices, absl::string_view name) {
  uint32_t index = 0;
  const bool by_index = absl::SimpleAtoi(name, &index);
  std::vector<std::string> matches;
  for (const v1::Device& device : devices) {
    const bool by_bus = !name.empty() && absl::EqualsIgnoreCase(device.pci_bus_id(), name);
    if (device.device_uuid() == name || by_bus || (by_index && device.index() == index)) {
      return device.device_uuid();
    }
    if (!name.empty() && absl::StartsWith(device.device_uuid(), name)) {
      matches.push_back(device.device_uuid());
    }
  }
  if (matches.size() == 1) return matches.front();
  if (matches.empty()) {
    return absl::NotFoundError(
        absl::StrCat("there is no device \"", name, "\" (see gpumemctl devices)"));
  }
  return absl::InvalidArgumentError(absl::StrCat("device \"", name, "\" is ambiguous: use one of ",
                                                 absl::StrJoin(matches, ", ")));
}

}  // namespace gpumem::cli
