// SPDX-License-Identifier: Apache-2.0
// Refusals for want of memory or count, as statuses that carry their reason as data.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem {

// Returns RESOURCE_EXHAUSTED with the Denial as a payload. Its message is one sentence: the
// requester and the amount, the usage, the limit in the way, and advice.
absl::Status DenialError(const v1::Denial& denial);

// Adds the Denial to a status that already has a message (a peer's).
void AttachDenial(const v1::Denial& denial, absl::Status* status);

// Returns the Denial that a status carries, if any.
std::optional<v1::Denial> DenialOf(const absl::Status& status);

// Marks an error whose cause passes by itself within seconds (Refusal.try_again).
void MarkTryAgain(absl::Status* status);
bool IsTryAgain(const absl::Status& status);

}  // namespace gpumem
