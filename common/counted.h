// SPDX-License-Identifier: Apache-2.0
// Counts as people read them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gpumem {

// Returns "3 segments", "1 segment". Thread-safe.
inline std::string Counted(uint64_t n, absl::string_view noun) {
  return absl::StrCat(n, " ", noun, n == 1 ? "" : "s");
}

}  // namespace gpumem
