// SPDX-License-Identifier: Apache-2.0
// Maps the name of a device, as a user writes it, to the UUID of one of the daemon's devices. No
// I/O, except in the caller's ListVisible.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::internal {

// The value of AcquireOptions::device that asks for the eligible device with most memory to get. It
// names no device: callers handle it before ResolveDevice.
inline constexpr absl::string_view kMostFree = "most-free";

// Returns the UUIDs of the GPUs that this process sees, in the order of its CUDA ordinals
// (VisibleDevices).
using ListVisible = absl::FunctionRef<absl::StatusOr<std::vector<std::string>>()>;

// Returns the UUID of the daemon's device, among `devices`, that `name` denotes (see DeviceName in
// gpumem/types.h). An ordinal counts what `visible` returns. If the daemon has no GPUs, it counts
// `devices` without pinned memory, and `visible` is not called.
//   NOT_FOUND         no device matches, or `visible` fails; the message lists the devices
//   INVALID_ARGUMENT  several match, or the name is empty or kMostFree
absl::StatusOr<std::string> ResolveDevice(absl::string_view name,
                                          absl::Span<const v1::Device* const> devices,
                                          ListVisible visible);

}  // namespace gpumem::internal
