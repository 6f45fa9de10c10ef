// SPDX-License-Identifier: Apache-2.0
// The calls of gpumem.v1.Broker about tenants that sessions make under their own.
#include <optional>

#include "absl/status/statusor.h"
#include "daemon/core/broker/tenants.h"
#include "daemon/core/quota_proto.h"
#include "daemon/transport/service/broker_service.h"
#include "daemon/transport/service/convert.h"
#include "daemon/transport/service/session_call.h"
#include "daemon/transport/service/unary_call.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;

absl::StatusOr<v1::CreateChildTenantResponse> Answered(const absl::StatusOr<TenantView>& tenant) {
  if (!tenant.ok()) return tenant.status();
  v1::CreateChildTenantResponse answer;
  answer.set_tenant(tenant->name);
  *answer.mutable_quota() = ToProto(tenant->quota);
  return answer;
}

}  // namespace

grpc::ServerUnaryReactor* BrokerService::CreateTenant(Context* context, const Bytes* request,
                                                      Bytes* response) {
  return Serve<v1::CreateChildTenantRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::CreateChildTenantRequest& create,
             bool) -> std::optional<absl::StatusOr<v1::CreateChildTenantResponse>> {
        absl::StatusOr<QuotaOverride> quota = FromProto(create.quota());
        if (!quota.ok()) return quota.status();
        return Answered(broker_->tenants().CreateChild(call, create.name(), *quota));
      });
}

grpc::ServerUnaryReactor* BrokerService::UpdateTenant(Context* context, const Bytes* request,
                                                      Bytes* response) {
  return Serve<v1::UpdateChildTenantRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::UpdateChildTenantRequest& update,
             bool) -> std::optional<absl::StatusOr<v1::CreateChildTenantResponse>> {
        absl::StatusOr<QuotaOverride> change = FromProto(update);
        if (!change.ok()) return change.status();
        return Answered(broker_->tenants().UpdateChild(call, update.tenant(), *change));
      });
}

grpc::ServerUnaryReactor* BrokerService::EndTenant(Context* context, const Bytes* request,
                                                   Bytes* response) {
  return Serve<v1::EndChildTenantRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::EndChildTenantRequest& end,
             bool) -> std::optional<absl::StatusOr<v1::EndTenantResponse>> {
        absl::StatusOr<BrokerTenants::Held> held = broker_->tenants().EndChild(call, end.tenant());
        if (!held.ok()) return held.status();
        return ToProto(*held);
      });
}

}  // namespace gpumemd
