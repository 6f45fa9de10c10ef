// SPDX-License-Identifier: Apache-2.0
// Contexts that break on a test's command.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/context/context.h"

namespace gpumemd {

// The environment variable that sets the number, from 1, of the memory at which a context breaks:
// "3" lets it make two. Set it before the context's process starts.
inline constexpr char kContextFaultVariable[] = "GPUMEM_TEST_CONTEXT_FAULT_AT";

// As MakeContext(), for RunAsContextProcess(). A CUDA context breaks as in production: a kernel in
// it writes to an invalid address.
absl::StatusOr<std::unique_ptr<Context>> MakeFaultyContext(const ContextSpec& spec);

}  // namespace gpumemd
