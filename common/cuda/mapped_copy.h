// SPDX-License-Identifier: Apache-2.0
// Copies between mappings of this process, beside the work of its other threads and streams.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace gpumem {

struct MappedCopy {
  void* to = nullptr;
  const void* from = nullptr;
  uint64_t bytes = 0;
};

// Copies memory mapped by MapHost.
void CopyOnHost(absl::Span<const MappedCopy> copies);

// Copies memory that the device can use (MapCuda), and blocks until all is copied. Uses a stream of
// this call in the device's primary context, which waits for no other stream. Makes the context if
// there is none.
//   UNAVAILABLE         this process has no usable CUDA driver
//   NOT_FOUND           this process does not see the device
//   RESOURCE_EXHAUSTED  no memory for a context
//   INTERNAL            any other error of the driver, by its name
absl::Status CopyOnDevice(const std::string& device_uuid, absl::Span<const MappedCopy> copies);

}  // namespace gpumem
