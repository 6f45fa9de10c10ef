// SPDX-License-Identifier: Apache-2.0
#include "client/files/xxh3.h"

namespace gpumem::internal {
namespace {

using Update = void (*)(XXH3_state_t*, const void*, size_t);

Update Fastest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return Xxh3UpdateAvx512;
  if (__builtin_cpu_supports("avx2")) return Xxh3UpdateAvx2;
#endif
  return Xxh3UpdateBaseline;
}

}  // namespace

void Xxh3UpdateBaseline(XXH3_state_t* state, const void* bytes, size_t size) {
  XXH3_128bits_update(state, bytes, size);
}

void Xxh3Update(XXH3_state_t* state, const void* bytes, size_t size) {
  static const Update update = Fastest();
  update(state, bytes, size);
}

}  // namespace gpumem::internal
