// SPDX-License-Identifier: Apache-2.0
// Tests that a device works.
#pragma once

#include "absl/status/status.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Makes the device's smallest segment, checks that it can be shared, and releases it. Uses a kind
// that is shared by a descriptor: the others need a CUDA context, which may otherwise never be
// needed. If the device has only those, tests nothing.
//   RESOURCE_EXHAUSTED  the device is full, which is no fault
//   others              the device's error, in a sentence that names it
absl::Status SelfTest(Device& device);

}  // namespace gpumemd
