// From what people call a device to its UUID. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::internal {

// The name that AcquireOptions::device takes beside those of devices.
inline constexpr absl::string_view kMostFree = "most-free";

// The UUIDs of the GPUs that this process sees, in its order (VisibleDevices).
using ListVisible = absl::FunctionRef<absl::StatusOr<std::vector<std::string>>()>;

// The UUID of the one of `devices`, the daemon's, that is called `name` (see DeviceName in
// client.h). `visible` is asked only where `name` is an ordinal and the daemon has GPUs.
//   NOT_FOUND         none is; the sentence names those that there are
//   INVALID_ARGUMENT  several are, or the name is empty, or most-free
absl::StatusOr<std::string> ResolveDevice(absl::string_view name,
                                          absl::Span<const v1::Device* const> devices,
                                          ListVisible visible);

}  // namespace gpumem::internal
