// SPDX-License-Identifier: Apache-2.0
// XXH3_128bits_update for the instructions of this machine: xxhash.h alone takes those of the
// compiler's target, which are at least half as fast here. Debian's shared library can choose, its
// archive cannot.
#pragma once

#include <cstddef>

#include "xxhash.h"

namespace gpumem::internal {

void Xxh3UpdateBaseline(XXH3_state_t* state, const void* bytes, size_t size);
// For machines with AVX2 and with AVX-512F. Elsewhere than on x86-64 as the baseline.
void Xxh3UpdateAvx2(XXH3_state_t* state, const void* bytes, size_t size);
void Xxh3UpdateAvx512(XXH3_state_t* state, const void* bytes, size_t size);

// As the fastest of these that this machine can run. The results are equal.
void Xxh3Update(XXH3_state_t* state, const void* bytes, size_t size);

}  // namespace gpumem::internal
