// SPDX-License-Identifier: Apache-2.0
// Kubernetes' quantities, such as "10Gi": the values of capacities in claims and slices. Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::kubernetes {

// Returns the bytes that a quantity names. Fractions of a byte are rounded up, as Kubernetes does.
//
//   Ki Mi Gi Ti Pi Ei        powers of 1024
//   n u m, none, k M G T P E powers of 1000
//   e3 E-3                   a power of ten
//
//   INVALID_ARGUMENT  it is no quantity, or negative
//   OUT_OF_RANGE      it is above 2^63 - 1, the most that Kubernetes can write
absl::StatusOr<uint64_t> ParseQuantity(absl::string_view text);

}  // namespace gpumem::kubernetes
