// Operators' changes of quotas while the daemon runs. They are kept apart from the configuration,
// so that an unchanged field goes on following it. Pure: daemon/restart/override_store.h saves them
// to disk, and quota_control.h applies them.
//
// Fields are named as in gpumem.v1.Quota. A plain limit or guarantee is for all devices: it removes
// the earlier ones of single devices.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "daemon/core/quota/quota.h"
#include "proto/gpumem/v1/admin.pb.h"
#include "proto/gpumem/v1/state.pb.h"

namespace gpumemd {

// By tenant.
using Overrides = std::map<std::string, gpumem::v1::QuotaOverride>;

// Returns OK for a request that Merge takes, whatever the tenant's quota is.
//   INVALID_ARGUMENT  nothing is changed; a field does not exist, or is both set and cleared, or
//                     can be set only in the configuration; a value is out of range
absl::Status CheckRequest(const gpumem::v1::SetQuotaRequest& request);

// Returns OK for an override that Merge can make.
//   INVALID_ARGUMENT  Merge cannot make it
absl::Status CheckRemembered(const gpumem::v1::QuotaOverride& override);

// Adds the changes of the request. Applying the result to any quota equals applying the earlier
// override and then the request.
void Merge(const gpumem::v1::SetQuotaRequest& request, gpumem::v1::QuotaOverride* override);

// Removes fields; without names, all.
//   INVALID_ARGUMENT     a name is no field of a quota
//   FAILED_PRECONDITION  one of them is not overridden, or nothing is
absl::Status Remove(absl::Span<const std::string> fields, gpumem::v1::QuotaOverride* override);

// Returns the overridden fields, in the order of gpumem.v1.Quota; empty if there is no override.
std::vector<std::string> FieldsOf(const gpumem::v1::QuotaOverride& override);

void Apply(const gpumem::v1::QuotaOverride& override, Quota* quota);

}  // namespace gpumemd
