// SPDX-License-Identifier: Apache-2.0
// A CUDA context on one GPU, for memory of kinds ipc and mempool.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/context/context.h"

namespace gpumemd {

// Returns the primary context of the GPU `spec.device_uuid`, and keeps it.
//   UNAVAILABLE         no usable CUDA driver
//   NOT_FOUND           this process does not see the device
//   RESOURCE_EXHAUSTED  the GPU has no memory for a context
//   INTERNAL            any other driver error, by its name
absl::StatusOr<std::unique_ptr<Context>> MakeCudaContext(const ContextSpec& spec);

}  // namespace gpumemd
