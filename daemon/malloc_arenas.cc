// SPDX-License-Identifier: Apache-2.0
#include "daemon/malloc_arenas.h"

#include <malloc.h>

#include <cstdlib>
#include <cstring>

namespace gpumemd {
namespace {

// True if the environment sets a parameter of malloc(3), by its variable or its tunable.
bool IsSet(const char* variable, const char* tunable) {
  if (std::getenv(variable) != nullptr) return true;
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  return tunables != nullptr && std::strstr(tunables, tunable) != nullptr;
}

}  // namespace

void LimitMallocArenas() {
  if (IsSet("MALLOC_ARENA_MAX", "glibc.malloc.arena_max")) return;
  constexpr int kArenas = 2;
  mallopt(M_ARENA_MAX, kArenas);
}

void LimitMallocTrimThreshold() {
  if (IsSet("MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold") ||
      IsSet("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold")) {
    return;
  }
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
}

}  // namespace gpumemd
