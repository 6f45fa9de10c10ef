// SPDX-License-Identifier: Apache-2.0
// The driver's facts about the GPUs. Makes no context.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Returns the UUIDs of the GPUs that this process sees, in the driver's order; at least one.
//   UNAVAILABLE  no usable CUDA driver; the message says why
absl::StatusOr<std::vector<std::string>> CudaDeviceUuids();

// Describes one of them. `kinds` are all that it supports, vmm first; perhaps none.
//   UNAVAILABLE  no usable CUDA driver
//   NOT_FOUND    this process does not see the device
//   INTERNAL     any other driver error, by its name
absl::StatusOr<DeviceInfo> DescribeCudaDevice(const std::string& uuid);

}  // namespace gpumemd
