// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#pragma GCC target("avx512f")
#endif

#include "client/files/xxh3.h"

namespace gpumem::internal {

void Xxh3UpdateAvx512(XXH3_state_t* state, const void* bytes, size_t size) {
  XXH3_128bits_update(state, bytes, size);
}

}  // namespace gpumem::internal
