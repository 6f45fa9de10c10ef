// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory, as one device: of kind pinned, which processes register with CUDA, and
// of kind host, which GPUs map by address.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/device/device.h"

namespace gpumemd {

inline constexpr char kPinnedDeviceUuid[] = "PINNED-00000000-0000-0000-0000-000000000000";

// Returns the shared descriptor of so many bytes of page-locked host memory. Statuses as of
// Device::Create.
using MakeHostMemory = std::function<absl::StatusOr<gpumem::UniqueFd>(uint64_t bytes)>;

struct PinnedDeviceOptions {
  uint64_t capacity_bytes = 0;  // of both kinds together; rounded down to 2 MiB
  // How memory of kind host is made.
  enum class HostKind {
    kNone,    // not at all
    kMemfd,   // as that of kind pinned, for the host backend
    kDriver,  // by make_host
  } host_kind = HostKind::kNone;
  MakeHostMemory make_host;
};

// Makes the device. Segments of kind pinned are sealed memfds whose pages are all allocated at
// creation, since registered memory is never reclaimed by the machine. Of huge pages if the machine
// has free ones for the whole segment (vm.nr_hugepages), of ordinary ones otherwise.
// Segments of kind host are memory of the driver, or memfds like those.
//
// Create() refuses with RESOURCE_EXHAUSTED sizes over the capacity, and ordinary pages that exceed
// the remainder of the machine or of the daemon's control group (BytesToTake in machine_memory.h).
// Allocations may outlive their device.
//   INVALID_ARGUMENT  the capacity is below 2 MiB
absl::StatusOr<std::unique_ptr<Device>> MakePinnedDevice(PinnedDeviceOptions options);

}  // namespace gpumemd
