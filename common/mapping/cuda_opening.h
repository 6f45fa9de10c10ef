// SPDX-License-Identifier: Apache-2.0
// Shared parts of opening CUDA's IPC handles and opening from CUDA's pools.
#pragma once

#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/cuda/context.h"

namespace gpumem {

// Returns the devices of those names, each once.
//   NOT_FOUND  this process does not see one
absl::StatusOr<std::vector<CUdevice>> FindCudaDevices(const CudaDriver& driver,
                                                      absl::Span<const std::string> uuids);

// Returns the device of that name; nothing if this process does not see it.
std::optional<CUdevice> FindVisible(const CudaDriver& driver, absl::string_view uuid);

// Checks that `user` can use memory of `home`.
//   UNIMPLEMENTED  it has no peer access
absl::Status CheckPeerAccess(const CudaDriver& driver, CUdevice user, CUdevice home);

// Converts the driver's result: OK for CUDA_SUCCESS, NOT_FOUND if the data's memory is gone.
absl::Status OpenError(const CudaDriver& driver, CUresult result, absl::string_view what);

// Returns the size of the allocation that begins at `at`.
//   INVALID_ARGUMENT  none begins there
absl::StatusOr<uint64_t> AllocationBytes(const CudaContext& context, CUdeviceptr at);

}  // namespace gpumem

#endif
