// SPDX-License-Identifier: Apache-2.0
// Tells whether this build can use GPUs. Decided at build time: without the CUDA toolkit's headers
// the programs have only the host backend (third_party/system/repositories.bzl).
#pragma once

#include <string>

namespace gpumem {

// Returns the version of the CUDA toolkit that this was built with, such as "13.0"; empty if it
// was built without one.
std::string CudaToolkit();

// Returns the same for people: "CUDA 13.0", or "host backend, built without CUDA".
std::string BuiltWith();

}  // namespace gpumem
