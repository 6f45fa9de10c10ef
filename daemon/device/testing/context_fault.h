// Contexts that break when a test says so.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/context/context.h"

namespace gpumemd {

// The environment variable that says at which piece of memory, from 1 on, a context breaks:
// "3" lets it make two. To be set before the context's process starts.
inline constexpr char kContextFaultVariable[] = "GPUMEM_TEST_CONTEXT_FAULT_AT";

// MakeContext's, to be given to RunAsContextProcess. A CUDA context breaks as in life: a
// kernel in it writes where no memory is.
absl::StatusOr<std::unique_ptr<Context>> MakeFaultyContext(const ContextSpec& spec);

}  // namespace gpumemd
