// SPDX-License-Identifier: Apache-2.0
// How many facts of Kubernetes' pods gpumemd keeps (Admin.SetPods).
#pragma once

#include <cstddef>

namespace gpumem {

// What a text counts beside its bytes, in the bounds below.
inline constexpr size_t kBytesOfText = 64;

struct PodBounds {
  size_t owners = 4;
  size_t pods = 2048;                   // of one owner
  size_t list_bytes = size_t{4} << 20;  // of one owner's texts
  size_t pod_bytes = size_t{64} << 10;  // of one pod's texts
};

}  // namespace gpumem
