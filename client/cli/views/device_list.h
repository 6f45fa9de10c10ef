// SPDX-License-Identifier: Apache-2.0
// The daemon's devices, by the names that people use.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::cli {

using DeviceList = std::vector<v1::Device>;

// Returns the UUID of the device that the user names by index, UUID, a prefix of one,
// or PCI bus id.
//   NOT_FOUND         there is none
//   INVALID_ARGUMENT  the prefix fits several
absl::StatusOr<std::string> ResolveDevice(const DeviceList& devices, absl::string_view name);

}  // namespace gpumem::cli
