// SPDX-License-Identifier: Apache-2.0
// NVIDIA's Multi-Process Service has a limit of memory for each client process. On a machine with
// MPS it is a second wall behind that of the preload. https://docs.nvidia.com/deploy/mps/
// (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gpumem::cli {

inline constexpr char kMpsLimitVariable[] = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

// True if a control daemon has its pipe in this folder; empty: in MPS's default folder.
bool MpsRuns(absl::string_view pipe_folder);

// Returns the variable's value for so many bytes on each of the first `devices` GPUs that a process
// sees. MPS counts in MiB; a part of one is rounded up.
std::string MpsLimit(uint64_t bytes, int devices);

}  // namespace gpumem::cli
