// SPDX-License-Identifier: Apache-2.0
// Changes of a quota that set one field.
#pragma once

#include <cstdint>

#include "daemon/core/quota/overrides.h"

namespace gpumemd {

inline QuotaOverride Limit(uint64_t bytes) {
  return {.set = {"limit_bytes"}, .values = {.limit_bytes = bytes}};
}
inline QuotaOverride Guarantee(uint64_t bytes) {
  return {.set = {"guarantee_bytes"}, .values = {.guarantee_bytes = bytes}};
}

}  // namespace gpumemd
