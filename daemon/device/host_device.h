// SPDX-License-Identifier: Apache-2.0
// A device of host memory, for machines without a GPU: each segment is a memfd.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"

namespace gpumemd {

struct HostDeviceOptions {
  uint32_t index = 0;                    // index among this node's host devices; determines the
                                         // UUID
  uint64_t capacity_bytes = 0;           // rounded down to the granularity
  uint64_t granularity_bytes = 2 << 20;  // a multiple of the page size
  uint32_t siblings = 1;                 // host devices of this node; each can access the others
};

class HostDevice : public Device {
 public:
  // Reserves `bytes` of the device's free memory for kinds that this device does not make. The
  // returned object's destructor returns them, even after the device's end.
  //   RESOURCE_EXHAUSTED  the device is full
  virtual absl::StatusOr<std::shared_ptr<void>> Reserve(uint64_t bytes) = 0;
};

std::string HostDeviceUuid(uint32_t index);

// Makes a device that refuses when it is full, as a GPU does: the bytes of all its Allocations
// never exceed its capacity. The kernel commits memory as it is written, so a device may be larger
// than the machine's free memory.
//
// Its UUID follows from the index alone: "HOST-00000001-0000-0000-0000-000000000000" is number 1,
// in every process and after every restart. Segments are sealed: a holder of the descriptor can
// neither shrink nor grow them, nor seal them further.
//
// Allocations may outlive their device.
//   INVALID_ARGUMENT  the options make no sense
absl::StatusOr<std::unique_ptr<HostDevice>> MakeHostDevice(const HostDeviceOptions& options);

}  // namespace gpumemd
