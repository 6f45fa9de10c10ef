// SPDX-License-Identifier: Apache-2.0
// Divides a Device::Copy into batches for a context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/device/context/context.h"
#include "daemon/device/device.h"

namespace gpumemd {

// The limits of one batch. It fits into one message, is imported in some milliseconds, and gives
// the copy engine work for as long as that takes.
struct CopyLimits {
  size_t parts = 64;
  uint64_t bytes = uint64_t{1} << 30;
  size_t extents = 2048;
};

// Returns the batches in the order of the items. An item is divided only if it exceeds the limits
// by itself.
//   INTERNAL  an item is not one segment with a descriptor and one of kind tier, of its size
absl::StatusOr<std::vector<CopyBatch>> PlanCopy(absl::Span<const CopyItem> items,
                                                const CopyLimits& limits = {});

}  // namespace gpumemd
