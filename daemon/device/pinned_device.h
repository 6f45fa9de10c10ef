// SPDX-License-Identifier: Apache-2.0
// Host memory that several processes register with CUDA, as one device.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"

namespace gpumemd {

inline constexpr char kPinnedDeviceUuid[] = "PINNED-00000000-0000-0000-0000-000000000000";

// Makes the device. Segments of kind pinned are sealed memfds whose pages are all allocated at
// creation, since registered memory is never reclaimed by the machine. Of huge pages if the machine
// has free ones for the whole segment (vm.nr_hugepages), of ordinary ones otherwise.
// `capacity_bytes` is rounded down to 2 MiB.
//
// Create() refuses with RESOURCE_EXHAUSTED sizes over the capacity, and ordinary pages that exceed
// the remainder of the machine or of the daemon's control group (BytesToTake in machine_memory.h).
// Allocations may outlive their device.
//   INVALID_ARGUMENT  the capacity is below 2 MiB
absl::StatusOr<std::unique_ptr<Device>> MakePinnedDevice(uint64_t capacity_bytes);

}  // namespace gpumemd
