// SPDX-License-Identifier: Apache-2.0
// A GPU whose segments are driver allocations behind file descriptors (cuMemCreate).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Opens the GPU of `info` (DescribeCudaDevice), for kind vmm only, or for no kind if the info's
// kinds lack it. Never makes a CUDA context on it: a daemon then costs the GPU some 4 MiB, and no
// sticky error of a context can stop it. An Allocation is only its descriptor, so a process that
// inherits the descriptor inherits the memory. `tidies`: see tidy/driver_tidy.h.
//   UNAVAILABLE  no usable CUDA driver
//   NOT_FOUND    this process does not see the device
absl::StatusOr<std::unique_ptr<Device>> OpenCudaVmmDevice(DeviceInfo info, bool tidies);

}  // namespace gpumemd
