// The properties of the public API's kinds.
#pragma once

#include "common/kind.h"
#include "gpumem/client.h"

namespace gpumem::internal {

static_assert(static_cast<int>(Kind::kVmm) == static_cast<int>(SegmentKind::kVmm) &&
                  static_cast<int>(Kind::kMempool) == static_cast<int>(SegmentKind::kMempool) &&
                  static_cast<int>(Kind::kIpc) == static_cast<int>(SegmentKind::kIpc) &&
                  static_cast<int>(Kind::kPinned) == static_cast<int>(SegmentKind::kPinned),
              "both have the numbers of the protocol");

// Returns the row of a kind; kNoKind for Kind::kDefault.
constexpr const KindTraits& TraitsOf(Kind kind) {
  return gpumem::TraitsOf(static_cast<SegmentKind>(kind));
}

}  // namespace gpumem::internal
