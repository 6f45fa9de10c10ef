// SPDX-License-Identifier: Apache-2.0
// What a command would change, as sentences without their end: for --dry-run and for questions.
// Pure. They describe the daemon's state at the time of the call; it may change before the command
// is carried out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/views/device_list.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::cli {

struct Effects {
  std::vector<std::string> lines;    // empty: nothing would change
  bool takes = false;                // true: others lose something
  std::vector<std::string> notices;  // for the operator; whole sentences
};

Effects DrainEffects(const v1::GetStatusResponse& status, bool resume);

// `checked` is the daemon's answer to CheckReload.
Effects ReloadEffects(const v1::ReloadResponse& checked);

// The request's device is a UUID or empty.
//   NOT_FOUND  there is no such tenant in the list
absl::StatusOr<Effects> TrimEffects(const v1::TrimRequest& request,
                                    const v1::ListTenantsResponse& tenants,
                                    const DeviceList& devices, bool exact);

// Of suspend and resume for a publication, "TENANT/NAME".
//   NOT_FOUND  there is no such publication in the list
absl::StatusOr<Effects> SuspendPublicationEffects(const std::string& name, bool resume,
                                                  const v1::ListPublicationsResponse& publications,
                                                  bool exact);

//   NOT_FOUND  no tenant of that name was made at run time
absl::StatusOr<Effects> TenantEndEffects(const v1::EndTenantRequest& request,
                                         const v1::ListTenantsResponse& tenants, bool exact);

// `name` is "TENANT/NAME" or, for a worker's own tenant, "NAME".
//   NOT_FOUND  there is no such publication in the list
absl::StatusOr<Effects> UnpublishEffects(const std::string& name, absl::string_view own_tenant,
                                         const v1::ListPublicationsResponse& publications,
                                         bool exact);

// `now` is the tenant's present quota. The request's devices are UUIDs.
Effects QuotaSetEffects(const v1::SetQuotaRequest& request, const v1::GetQuotaResponse& now,
                        const DeviceList& devices, bool exact);
Effects QuotaUnsetEffects(const v1::UnsetQuotaRequest& request, const v1::GetQuotaResponse& now);

// `pools` are the tenant's; the request's device is a UUID or empty.
//   NOT_FOUND  the tenant has no pool there
absl::StatusOr<Effects> PoolSetEffects(const v1::SetPoolRequest& request,
                                       const std::vector<v1::PoolInfo>& pools,
                                       const DeviceList& devices, bool exact);
absl::StatusOr<Effects> PoolTrimEffects(const v1::TrimPoolRequest& request,
                                        const std::vector<v1::PoolInfo>& pools,
                                        const DeviceList& devices, bool exact);

}  // namespace gpumem::cli
