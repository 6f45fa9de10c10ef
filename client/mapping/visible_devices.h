// SPDX-License-Identifier: Apache-2.0
// The GPUs that this process sees (CUDA_VISIBLE_DEVICES hides and reorders).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::internal {

// Returns their UUIDs, in the order of this process's CUDA. Loads the driver (some 0.2 s the first
// time).
//   UNAVAILABLE  this process has no usable CUDA driver; the message says why
absl::StatusOr<std::vector<std::string>> VisibleDevices();

// Returns OK if this process sees the device; else NOT_FOUND, or UNAVAILABLE as above.
absl::Status CheckVisible(absl::string_view uuid);

}  // namespace gpumem::internal
