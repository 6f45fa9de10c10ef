// SPDX-License-Identifier: Apache-2.0
// Marks errors whose cause passes by itself within seconds (Refusal.try_again in session.proto).
#pragma once

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace gpumem {

inline constexpr char kTryAgainUrl[] = "gpumem.dev/try-again";

inline void MarkTryAgain(absl::Status* status) { status->SetPayload(kTryAgainUrl, absl::Cord()); }

inline bool IsTryAgain(const absl::Status& status) {
  return status.GetPayload(kTryAgainUrl).has_value();
}

}  // namespace gpumem
