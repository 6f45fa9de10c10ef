// SPDX-License-Identifier: Apache-2.0
#include "client/session/tenants/own_tenants.h"

namespace gpumem::internal {

absl::StatusOr<v1::CreateChildTenantResponse> OwnTenants::Create(
    const v1::CreateChildTenantRequest& request, absl::Time deadline) {
  auto made = session_.Ask(&v1::Broker::Stub::CreateTenant, request, deadline);
  if (!made.ok() || made->lasting() == request.lasting()) return made;
  v1::EndChildTenantRequest end;
  end.set_tenant(made->tenant());
  (void)End(end, deadline);
  return absl::UnimplementedError("the daemon is older than lasting tenants");
}

absl::StatusOr<v1::CreateChildTenantResponse> OwnTenants::Update(
    const v1::UpdateChildTenantRequest& request, absl::Time deadline) {
  return session_.Ask(&v1::Broker::Stub::UpdateTenant, request, deadline);
}

absl::StatusOr<v1::EndTenantResponse> OwnTenants::End(const v1::EndChildTenantRequest& request,
                                                      absl::Time deadline) {
  return session_.Ask(&v1::Broker::Stub::EndTenant, request, deadline);
}

absl::StatusOr<v1::ListChildTenantsResponse> OwnTenants::List(absl::Time deadline) {
  return session_.Ask(&v1::Broker::Stub::ListTenants, v1::ListChildTenantsRequest(), deadline);
}

absl::StatusOr<v1::GetTenantUsageResponse> OwnTenants::Usage(
    const v1::GetTenantUsageRequest& request, absl::Time deadline) {
  return session_.Ask(&v1::Broker::Stub::GetTenantUsage, request, deadline);
}

}  // namespace gpumem::internal
