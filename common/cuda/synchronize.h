// SPDX-License-Identifier: Apache-2.0
// Waiting for a process's GPU work.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace gpumem {

// Blocks until the GPU work in this process's primary contexts of these devices has ended. A device
// without a primary context has no such work; none is created.
//   UNAVAILABLE  this process has no usable CUDA driver
//   NOT_FOUND    this process does not see a device
//   INTERNAL     work has failed, or a stream of the device is captured; the message has the
//                driver's name of the error
absl::Status SynchronizeDevices(absl::Span<const std::string> device_uuids);

}  // namespace gpumem
