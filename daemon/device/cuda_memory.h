// SPDX-License-Identifier: Apache-2.0
// Driver allocations behind file descriptors (cuMemCreate). They need no CUDA context.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/cuda/driver.h"
#include "common/unique_fd.h"

#if GPUMEM_WITH_CUDA
#include <string>
#endif

namespace gpumemd {

// Makes host memory that GPUs map by its descriptor (kind host), on the NUMA node of the first GPU
// that this process sees. The pages are allocated and zeroed when this returns. Only descriptors
// and mappings keep it.
//   UNAVAILABLE         no usable CUDA driver
//   RESOURCE_EXHAUSTED  no memory or descriptors left
//   INTERNAL            any other driver error, by its name; also from a driver that cannot do it
absl::StatusOr<gpumem::UniqueFd> MakeCudaHostMemory(uint64_t bytes);

#if GPUMEM_WITH_CUDA
// Makes memory at `location` and returns the descriptor that shares it, close-on-exec. `where`
// completes the messages of errors.
//   RESOURCE_EXHAUSTED  no memory or descriptors left
//   INTERNAL            any other driver error, by its name
absl::StatusOr<gpumem::UniqueFd> MakeCudaMemory(const gpumem::CudaDriver& driver,
                                                const CUmemLocation& location, uint64_t bytes,
                                                const std::string& where);

// Returns the location of memory on this NUMA node of the host.
CUmemLocation HostLocation(int numa_node);
#endif

}  // namespace gpumemd
