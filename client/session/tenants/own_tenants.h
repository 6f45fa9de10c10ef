// SPDX-License-Identifier: Apache-2.0
// The tenants that sessions of this user have made under a session's (broker.proto).
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session/session.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::internal {

// Thread-safe. Each call is repeated until a daemon has answered it. Statuses as in broker.proto.
class OwnTenants {
 public:
  // `session` must outlive this.
  explicit OwnTenants(Session* session) : session_(*session) {}

  //   UNIMPLEMENTED  also: the daemon knows no lasting tenants
  absl::StatusOr<v1::CreateChildTenantResponse> Create(const v1::CreateChildTenantRequest& request,
                                                       absl::Time deadline);
  absl::StatusOr<v1::CreateChildTenantResponse> Update(const v1::UpdateChildTenantRequest& request,
                                                       absl::Time deadline);
  absl::StatusOr<v1::EndTenantResponse> End(const v1::EndChildTenantRequest& request,
                                            absl::Time deadline);
  absl::StatusOr<v1::ListChildTenantsResponse> List(absl::Time deadline);
  // Of the session's tenant, or of any that an operator has made for the user.
  absl::StatusOr<v1::GetTenantUsageResponse> Usage(const v1::GetTenantUsageRequest& request,
                                                   absl::Time deadline);

 private:
  Session& session_;
};

}  // namespace gpumem::internal
