// SPDX-License-Identifier: Apache-2.0
// Random numbers and digests that are the same on every machine.
#pragma once

#include <cstdint>

#include "common/testing/random.h"

namespace gpumemd::simulation {

using gpumem::testing::Random;

// Adds a value to a digest of a history.
inline uint64_t Mix(uint64_t digest, uint64_t value) {
  return Random(digest ^ (value * 0xff51afd7ed558ccd)).Next();
}

}  // namespace gpumemd::simulation
