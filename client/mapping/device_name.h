// SPDX-License-Identifier: Apache-2.0
// Maps a device's name to its UUID. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::internal {

// The value of AcquireOptions::device that names no device.
inline constexpr absl::string_view kMostFree = "most-free";

// Returns the UUIDs of the GPUs that this process sees, in its order (VisibleDevices).
using ListVisible = absl::FunctionRef<absl::StatusOr<std::vector<std::string>>()>;

// Returns the UUID of the daemon's device, among `devices`, that `name` denotes (see DeviceName in
// client.h). Calls `visible` only if `name` is an ordinal and the daemon has GPUs.
//   NOT_FOUND         no device matches; the message lists the devices
//   INVALID_ARGUMENT  several match, or the name is empty, or most-free
absl::StatusOr<std::string> ResolveDevice(absl::string_view name,
                                          absl::Span<const v1::Device* const> devices,
                                          ListVisible visible);

}  // namespace gpumem::internal
