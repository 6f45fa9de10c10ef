// SPDX-License-Identifier: Apache-2.0
// A change of a quota with every field.
#pragma once

#include "common/quota_keys.h"
#include "daemon/core/quota/overrides.h"

namespace gpumemd {

// Returns a change that sets every field but the parent, each to another value than its default.
inline QuotaOverride EveryField() {
  QuotaOverride change{.values = {.limit_bytes = 1,
                                  .device_limits = {{"GPU-1", 7}},
                                  .total_limit_bytes = 2,
                                  .pinned_limit_bytes = 8,
                                  .tier_limit_bytes = 14,
                                  .max_segments = 3,
                                  .max_sessions = 4,
                                  .max_in_flight = 5,
                                  .max_waiting = 12,
                                  .max_publications = 13,
                                  .max_retained_bytes = 6,
                                  .guarantee_bytes = 9,
                                  .device_guarantees = {{"GPU-1", 10}},
                                  .priority = -11,
                                  .kind = Kind::kIpc,
                                  .scrub = true,
                                  .revocable = true,
                                  .swappable = true,
                                  .min_residence = absl::Milliseconds(15),
                                  .idle_suspend = absl::Milliseconds(16),
                                  .release = ReleasePolicy::kOnExit,
                                  .preload = PreloadMode::kBroker}};
  for (const gpumem::QuotaKey& key : gpumem::kQuotaKeys) {
    if (key.unit != gpumem::QuotaUnit::kTenant) change.set.emplace(key.field);
  }
  return change;
}

}  // namespace gpumemd
