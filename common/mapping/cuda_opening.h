// What opening CUDA's IPC handles and opening from CUDA's pools have in common.
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

// The devices of those names, each once.
//   NOT_FOUND  this process does not see one
absl::StatusOr<std::vector<CUdevice>> FindCudaDevices(const CudaDriver& driver,
                                                      absl::Span<const std::string> uuids);

// The device of that name; nothing where this process does not see it.
std::optional<CUdevice> FindVisible(const CudaDriver& driver, absl::string_view uuid);

// Whether `user` can use memory of `home`.
//   UNIMPLEMENTED  it has no peer access
absl::Status CheckPeerAccess(const CudaDriver& driver, CUdevice user, CUdevice home);

// OK for CUDA_SUCCESS; NOT_FOUND for what the driver says of data whose memory is gone.
absl::Status OpenError(const CudaDriver& driver, CUresult result, absl::string_view what);

// How many bytes the allocation has that begins at `at`.
//   INVALID_ARGUMENT  none begins there
absl::StatusOr<uint64_t> AllocationBytes(const CudaContext& context, CUdeviceptr at);

}  // namespace gpumem

#endif
