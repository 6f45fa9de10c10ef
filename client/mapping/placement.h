// Where memory is to be, and who is to use it: callers' options, checked and with every
// device by its UUID.
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

// Whether the device of that UUID is a GPU, and not one of the host backend.
bool IsGpu(const v1::Welcome& welcome, absl::string_view uuid);
bool HasGpus(const v1::Welcome& welcome);

// See ResolveDevice.
absl::StatusOr<std::string> DeviceUuid(const v1::Welcome& welcome, const DeviceName& name);

// Of the daemon's GPUs that this process sees, in its order, those that make the kind; where none
// does, all, so that the daemon can say what they make.
//   NOT_FOUND      it sees none of them
//   UNIMPLEMENTED  this process has no usable CUDA driver
absl::StatusOr<std::vector<std::string>> VisibleMakers(const v1::Welcome& welcome, Kind kind);

// What to ask of the mapper for the options of those names. Thereby every GPU of the answer
// is one that this process sees.
//   INVALID_ARGUMENT  a name is none, or of no GPU; or the address is no multiple of 2 MiB
//   NOT_FOUND         there is no such device, or this process does not see it
//   UNIMPLEMENTED     this process has no usable CUDA driver
absl::StatusOr<MapOptions> Placement(const v1::Welcome& welcome,
                                     absl::Span<const DeviceName> map_devices, void* address,
                                     bool read_only);

// UNIMPLEMENTED where memory of that kind cannot be mapped so.
absl::Status CheckPlacement(Kind kind, const MapOptions& options);

}  // namespace gpumem::internal
