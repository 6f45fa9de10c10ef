// Refusals for want of memory or count, as statuses that carry their reason as data.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem {

// RESOURCE_EXHAUSTED with one plain sentence (who asked for how much of what, what is
// used, which limit stood in the way, what would help) and the Denial as a payload.
absl::Status DenialError(const v1::Denial& denial);

// Adds the Denial to a status that has its words already (a peer's).
void AttachDenial(const v1::Denial& denial, absl::Status* status);

// The Denial that a status carries, if it does.
std::optional<v1::Denial> DenialOf(const absl::Status& status);

}  // namespace gpumem
