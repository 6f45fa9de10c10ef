// SPDX-License-Identifier: Apache-2.0
// The address and the devices of a mapping: the caller's options, validated, with each device as a
// UUID.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/mapping/mapping.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumem::internal {

// True if the device of that UUID is a GPU; false for the host backend.
bool IsGpu(const v1::Welcome& welcome, absl::string_view uuid);
bool HasGpus(const v1::Welcome& welcome);

// Returns the backend whose addresses memory of the kind has, on a device of backend `device`. Kind
// host is made of host memory, and where the daemon has GPUs, they map it.
Backend MappingBackend(const v1::Welcome& welcome, Kind kind, Backend device);

// See ResolveDevice.
absl::StatusOr<std::string> DeviceUuid(const v1::Welcome& welcome, const DeviceName& name);

// Returns the daemon's GPUs that this process sees and that support the kind, in this process's
// order. If none does, returns all that it sees, so that the daemon can report which kinds they
// support.
//   NOT_FOUND      it sees none of them
//   UNIMPLEMENTED  this process has no usable CUDA driver
absl::StatusOr<std::vector<std::string>> VisibleMakers(const v1::Welcome& welcome, Kind kind);

// Returns the mapper's options for these options. Every GPU in them is visible to this process.
//   INVALID_ARGUMENT  an invalid name, or one that is no GPU; or the address is no multiple of 2
//                     MiB
//   NOT_FOUND         there is no such device, or this process does not see it
//   UNIMPLEMENTED     this process has no usable CUDA driver
absl::StatusOr<MapOptions> Placement(const v1::Welcome& welcome,
                                     absl::Span<const DeviceName> map_devices, void* address,
                                     bool read_only);

// Returns UNIMPLEMENTED if memory of that kind cannot be mapped with these options.
absl::Status CheckPlacement(Kind kind, const MapOptions& options);

}  // namespace gpumem::internal
