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

}  // namespace gpumemd
