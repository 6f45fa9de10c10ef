// The GPUs that this process sees (CUDA_VISIBLE_DEVICES hides and reorders).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::internal {

// Their UUIDs, in the order of this process's CUDA. Loads the driver (some 0.2 s the first
// time).
//   UNAVAILABLE  this process has no usable CUDA driver; the sentence says why
absl::StatusOr<std::vector<std::string>> VisibleDevices();

// OK where this process sees the device; else NOT_FOUND, or UNAVAILABLE as above.
absl::Status CheckVisible(absl::string_view uuid);

}  // namespace gpumem::internal
