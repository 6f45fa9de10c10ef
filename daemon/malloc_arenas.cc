// SPDX-License-Identifier: Apache-2.0
#include "daemon/malloc_arenas.h"

#include <malloc.h>

#include <cstdlib>

namespace gpumemd {

void LimitMallocArenas() {
  if (std::getenv("MALLOC_ARENA_MAX") != nullptr || std::getenv("GLIBC_TUNABLES") != nullptr)
    return;
  constexpr int kArenas = 2;
  mallopt(M_ARENA_MAX, kArenas);
}

}  // namespace gpumemd
