// SPDX-License-Identifier: Apache-2.0
// Copies the contents of host memory to and from the host tier.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Copies between segments that are memfds (Allocation::fd()) and segments of kind tier. As
// Device::Copy().
//   INVALID_ARGUMENT    an item is not such a pair, or one of the two is smaller than its bytes
//   RESOURCE_EXHAUSTED  no memory or addresses left
//   INTERNAL            any other error of the system
absl::Status CopyHostMemory(absl::Span<const CopyItem> items);

}  // namespace gpumemd
