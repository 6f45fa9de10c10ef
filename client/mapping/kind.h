// SPDX-License-Identifier: Apache-2.0
// The properties of the public API's kinds.
#pragma once

#include "common/kind.h"
#include "gpumem/client.h"

namespace gpumem::internal {

// Returns the row of a kind; kNoKind for Kind::kDefault. Both enumerations have the same numbers
// (client/c_api/boundary.cc asserts it).
constexpr const KindTraits& TraitsOf(Kind kind) {
  return gpumem::TraitsOf(static_cast<SegmentKind>(kind));
}

}  // namespace gpumem::internal
