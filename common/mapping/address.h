// SPDX-License-Identifier: Apache-2.0
// Checks of requested addresses, for all kinds of mappings.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gpumem {

inline absl::Status CheckAddress(const void* address) {
  constexpr uintptr_t kMultiple = uintptr_t{2} << 20;  // the largest of CUDA's granularities
  if (reinterpret_cast<uintptr_t>(address) % kMultiple == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("memory cannot be mapped at 0x",
                                                 absl::Hex(reinterpret_cast<uintptr_t>(address)),
                                                 ": the address must be a multiple of 2 MiB"));
}

inline absl::Status AddressTaken(const void* address, uint64_t bytes) {
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot map ", bytes, " bytes at 0x", absl::Hex(reinterpret_cast<uintptr_t>(address)),
      ": the addresses are in use or not usable; request another address, or none"));
}

}  // namespace gpumem
