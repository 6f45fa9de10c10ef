// SPDX-License-Identifier: Apache-2.0
// Operators' changes of quotas while the daemon runs. They are kept apart from the configuration,
// so that an unchanged field goes on following it. Pure: daemon/restart/override_store.h saves them
// to disk, and quota_control.h applies them.
//
// Fields are named as in common/quota_keys.h. A plain limit or guarantee is for all devices: it
// removes the earlier ones of single devices.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/quota/quota.h"

namespace gpumemd {

// Changes of some fields of a quota: those of one request, or all of a tenant.
struct QuotaOverride {
  std::set<std::string, std::less<>> set;  // fields that it sets
  Quota values;                            // their values; other fields are as in Quota()
  std::vector<std::string> clear;          // fields that it clears before

  bool operator==(const QuotaOverride&) const = default;
};

// By tenant.
using Overrides = std::map<std::string, QuotaOverride>;

// A tenant's quota with an override.
struct OverriddenQuota {
  Quota quota;            // the override on top of what the tenant has now
  QuotaOverride changes;  // the override alone, for what the tenant gets later
};

// Returns OK for a change that Merge takes, whatever the tenant's quota is.
//   INVALID_ARGUMENT  nothing is changed; a field does not exist, or is both set and cleared, or
//                     can be set only in the configuration; a value is out of range
absl::Status CheckChange(const QuotaOverride& change);

// Returns OK for an override that Merge can make.
//   INVALID_ARGUMENT  Merge cannot make it
absl::Status CheckRemembered(absl::string_view tenant, const QuotaOverride& override);

// Adds the changes. Applying the result to any quota equals applying the earlier override and then
// the change.
void Merge(const QuotaOverride& change, QuotaOverride* override);

// Removes fields; without names, all.
//   INVALID_ARGUMENT     a name is no field of a quota
//   FAILED_PRECONDITION  one of them is not overridden, or nothing is
absl::Status Remove(absl::Span<const std::string> fields, QuotaOverride* override);

// Returns the overridden fields, in the order of gpumem.v1.Quota; empty if there is no override.
std::vector<std::string> FieldsOf(const QuotaOverride& override);

void Apply(const QuotaOverride& override, Quota* quota);

}  // namespace gpumemd
