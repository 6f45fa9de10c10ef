// Whether a device does what it is there for.
#pragma once

#include "absl/status/status.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Makes the smallest segment that the device makes, sees that it can be shared, and gives it back.
// Of a kind that is shared by a descriptor: the others would take a CUDA context, which nobody may
// ever need; where the device has only those, nothing is tried.
//   RESOURCE_EXHAUSTED  the device is full: no fault of it
//   others              what it answered, in a sentence that names it
absl::Status SelfTest(Device& device);

}  // namespace gpumemd
