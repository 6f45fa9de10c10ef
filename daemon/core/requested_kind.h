// SPDX-License-Identifier: Apache-2.0
// The kind that a request names.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Returns the kind with this number of the protocol; nullopt for 0, KIND_UNSPECIFIED, which leaves
// the choice to the callee.
//   UNIMPLEMENTED  this daemon does not know it, or programs cannot acquire it
absl::StatusOr<std::optional<Kind>> RequestedKind(int number);

}  // namespace gpumemd
