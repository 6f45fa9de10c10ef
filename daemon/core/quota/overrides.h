// What operators change of quotas while the daemon runs, kept apart from what the configuration
// says: a field that nobody changed goes on following the configuration. Pure; who remembers
// them on disk is daemon/restart/override_store.h, who applies them is quota_control.h.
//
// Fields are named as in gpumem.v1.Quota. A plain limit or guarantee is for all devices: it
// takes those of single devices away that were there before.
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

// Whether a request is one that Merge takes, whatever the tenant's quota is.
//   INVALID_ARGUMENT  nothing is changed; a field that there is not, or that is both set and
//                     cleared, or that only the configuration says; a value out of range
absl::Status CheckRequest(const gpumem::v1::SetQuotaRequest& request);

// Whether it is one that Merge makes, and not somebody's invention.
//   INVALID_ARGUMENT  it is not
absl::Status CheckRemembered(const gpumem::v1::QuotaOverride& override);

// Adds what the request changes. Applied to any quota, the outcome is that of applying what was
// there before and then the request.
void Merge(const gpumem::v1::SetQuotaRequest& request, gpumem::v1::QuotaOverride* override);

// Takes fields out; no names: all.
//   INVALID_ARGUMENT     a name is no field of a quota
//   FAILED_PRECONDITION  one of them is not overridden, or nothing is
absl::Status Remove(absl::Span<const std::string> fields, gpumem::v1::QuotaOverride* override);

// The fields that are overridden, in the order of gpumem.v1.Quota; empty: there is no override.
std::vector<std::string> FieldsOf(const gpumem::v1::QuotaOverride& override);

void Apply(const gpumem::v1::QuotaOverride& override, Quota* quota);

}  // namespace gpumemd
