// SPDX-License-Identifier: Apache-2.0
// What containers of all our drivers see.
#pragma once

namespace gpumem::kubernetes {

// The path of gpumemd's sockets in containers.
inline constexpr char kRuntimeDirOfContainers[] = "/run/gpumem";

}  // namespace gpumem::kubernetes
