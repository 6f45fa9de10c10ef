// SPDX-License-Identifier: Apache-2.0
// Changes of a quota: of one field, of one device, and of all in which a quota differs from none.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/quota_keys.h"
#include "daemon/core/quota/overrides.h"

namespace gpumemd {

inline QuotaOverride Limit(uint64_t bytes) {
  return {.set = {"limit_bytes"}, .values = {.limit_bytes = bytes}};
}
inline QuotaOverride Guarantee(uint64_t bytes) {
  return {.set = {"guarantee_bytes"}, .values = {.guarantee_bytes = bytes}};
}

// Sets a limit (`field` is "devices") or a guarantee ("guarantees") on one device.
inline QuotaOverride OnDevice(absl::string_view field, const std::string& device, uint64_t bytes) {
  QuotaOverride change{.set = {std::string(field)}};
  (field == "devices" ? change.values.device_limits : change.values.device_guarantees)[device] =
      bytes;
  return change;
}

// Returns a change that makes Quota() this quota, but for its parent.
inline QuotaOverride Difference(const Quota& quota) {
  QuotaOverride change{.values = quota};
  change.values.parent.clear();
  for (const gpumem::QuotaKey& key : gpumem::kQuotaKeys) {
    if (key.unit == gpumem::QuotaUnit::kTenant) continue;
    Quota with_field;
    Apply({.set = {std::string(key.field)}, .values = quota}, &with_field);
    if (!(with_field == Quota())) change.set.emplace(key.field);
  }
  return change;
}

}  // namespace gpumemd
