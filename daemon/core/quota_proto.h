// SPDX-License-Identifier: Apache-2.0
// Quotas and operators' changes of them as the protocol names them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "daemon/core/quota/overrides.h"
#include "daemon/core/quota/quota.h"
#include "proto/gpumem/v1/admin.pb.h"
#include "proto/gpumem/v1/broker.pb.h"
#include "proto/gpumem/v1/state.pb.h"

namespace gpumemd {

gpumem::v1::PreloadMode ToProto(PreloadMode mode);
gpumem::v1::HoldersShown ToProto(HoldersShown shown);
gpumem::v1::Quota ToProto(const Quota& quota);

// Returns the change, without the checks of overrides.h.
//   INVALID_ARGUMENT  this daemon does not know the kind, the release policy or the preload mode
absl::StatusOr<QuotaOverride> FromProto(const gpumem::v1::SetQuotaRequest& request);
absl::StatusOr<QuotaOverride> FromProto(const gpumem::v1::UpdateTenantRequest& request);
absl::StatusOr<QuotaOverride> FromProto(const gpumem::v1::UpdateChildTenantRequest& request);
// Of a tenant that is made with this quota.
absl::StatusOr<QuotaOverride> FromProto(const gpumem::v1::Quota& quota);

// As above, for the override of a tenant.
absl::StatusOr<QuotaOverride> FromProto(const gpumem::v1::QuotaOverride& override);
gpumem::v1::QuotaOverride ToProto(const std::string& tenant, const QuotaOverride& override);

}  // namespace gpumemd
