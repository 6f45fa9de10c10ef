// SPDX-License-Identifier: Apache-2.0
// The calls of gpumem.v1.Broker about tenants that sessions make under their own.
#include <optional>
#include <vector>

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
  answer.set_lasting(tenant->made && tenant->made->lasting);
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
        return Answered(
            broker_->tenants().CreateChild(call, create.name(), *quota, create.lasting()));
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

grpc::ServerUnaryReactor* BrokerService::ListTenants(Context* context, const Bytes* request,
                                                     Bytes* response) {
  return Serve<v1::ListChildTenantsRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::ListChildTenantsRequest&,
             bool) -> std::optional<absl::StatusOr<v1::ListChildTenantsResponse>> {
        const absl::StatusOr<std::vector<TenantView>> tenants =
            broker_->tenants().ListChildren(call);
        if (!tenants.ok()) return tenants.status();
        v1::ListChildTenantsResponse answer;
        for (const TenantView& tenant : *tenants) {
          v1::TenantInfo& info = *answer.add_tenants();
          *info.mutable_usage() = ToProto(tenant);
          *info.mutable_quota() = ToProto(tenant.quota);
          info.set_configured(tenant.configured);
          *info.mutable_made() = ToProto(*tenant.made);
        }
        return answer;
      });
}

grpc::ServerUnaryReactor* BrokerService::GetTenantUsage(Context* context, const Bytes* request,
                                                        Bytes* response) {
  return Serve<v1::GetTenantUsageRequest>(
      context, request, response,
      [this](const Broker::Call& call, const v1::GetTenantUsageRequest& ask,
             bool) -> std::optional<absl::StatusOr<v1::GetTenantUsageResponse>> {
        absl::StatusOr<BrokerTenants::Uses> uses = broker_->tenants().UsesFor(call, ask.tenant());
        if (!uses.ok()) return uses.status();
        return ToProto(*uses);
      });
}

}  // namespace gpumemd
