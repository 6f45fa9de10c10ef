// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "client/mapping/kind.h"
#include "common/cuda/staging.h"
#include "gpumem/client.h"

namespace gpumem::internal {

// Returns the copier to and from a segment's memory. Statuses of Staging::ForCuda.
inline absl::StatusOr<std::unique_ptr<Staging>> StagingOf(const Segment& segment) {
  const bool of_host = segment.backend() == Backend::kHost || TraitsOf(segment.kind()).registered;
  return of_host ? Staging::ForHost() : Staging::ForCuda(segment.device_uuid());
}

}  // namespace gpumem::internal
