// A GPU whose segments are driver allocations behind file descriptors (cuMemCreate).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"

namespace gpumemd {

// The UUIDs of the GPUs that this process sees, in the driver's order; at least one.
//   UNAVAILABLE  no usable CUDA driver; the sentence says why
absl::StatusOr<std::vector<std::string>> CudaDeviceUuids();

// Opens a GPU. Never makes a CUDA context on it: a daemon then costs the GPU some 4 MiB,
// and no sticky error of a context can stop it. An Allocation is its descriptor and
// nothing else, so that whoever inherits the descriptor inherits the memory.
//   UNAVAILABLE    no usable CUDA driver
//   NOT_FOUND      this process does not see the device
//   UNIMPLEMENTED  the device cannot share memory by file descriptors
//   INTERNAL       any other driver error, by its name
absl::StatusOr<std::unique_ptr<Device>> OpenCudaVmmDevice(const std::string& uuid);

}  // namespace gpumemd
