// SPDX-License-Identifier: Apache-2.0
// The calls of gpumem.v1.Admin about tenants that are made at run time.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/core/broker/tenants.h"
#include "daemon/core/quota_proto.h"
#include "daemon/transport/service/admin_service.h"
#include "daemon/transport/service/convert.h"
#include "daemon/transport/service/unary_call.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;

template <typename Request>
std::optional<std::string> OwnerOf(const Request& request) {
  return request.has_owner() ? std::optional<std::string>(request.owner()) : std::nullopt;
}

std::optional<uid_t> UserOf(const v1::CreateTenantRequest& request) {
  return request.has_user() ? std::optional<uid_t>(request.user()) : std::nullopt;
}

}  // namespace

grpc::Status AdminService::GetTenantUsage(grpc::ServerContext*,
                                          const v1::GetTenantUsageRequest* request,
                                          v1::GetTenantUsageResponse* response) {
  absl::StatusOr<BrokerTenants::Uses> uses = broker_->tenants().UsesOf(request->tenant());
  if (!uses.ok()) return ToAnswer(uses.status());
  *response = ToProto(*uses);
  return grpc::Status::OK;
}

v1::TenantInfo AdminService::Describe(const TenantView& tenant) const {
  v1::TenantInfo info;
  *info.mutable_usage() = ToProto(tenant);
  *info.mutable_quota() = ToProto(tenant.quota);
  info.set_configured(tenant.configured);
  for (std::string& field : quotas_->Overridden(tenant.name)) {
    info.add_overridden(std::move(field));
  }
  if (tenant.made) *info.mutable_made() = ToProto(*tenant.made);
  return info;
}

grpc::Status AdminService::CreateTenant(grpc::ServerContext* context,
                                        const v1::CreateTenantRequest* request,
                                        v1::TenantInfo* response) {
  absl::StatusOr<QuotaOverride> quota = FromProto(request->quota());
  if (!quota.ok()) return ToAnswer(quota.status());
  absl::StatusOr<TenantView> made = quotas_->CreateTenant({.tenant = request->tenant(),
                                                           .parent = request->parent(),
                                                           .owner = request->owner(),
                                                           .quota = *std::move(quota),
                                                           .user = UserOf(*request),
                                                           .by = Caller(context)});
  if (!made.ok()) return ToAnswer(made.status());
  spdlog::info("tenant {} was made by an operator", request->tenant());
  *response = Describe(*made);
  return grpc::Status::OK;
}

grpc::Status AdminService::UpdateTenant(grpc::ServerContext* context,
                                        const v1::UpdateTenantRequest* request,
                                        v1::TenantInfo* response) {
  absl::StatusOr<QuotaOverride> change = FromProto(*request);
  if (!change.ok()) return ToAnswer(change.status());
  absl::StatusOr<TenantView> changed =
      quotas_->UpdateTenant(request->tenant(), OwnerOf(*request), *change, Caller(context));
  if (!changed.ok()) return ToAnswer(changed.status());
  spdlog::info("tenant {} was changed: {}", request->tenant(), request->ShortDebugString());
  *response = Describe(*changed);
  return grpc::Status::OK;
}

grpc::Status AdminService::EndTenant(grpc::ServerContext* context,
                                     const v1::EndTenantRequest* request,
                                     v1::EndTenantResponse* response) {
  const absl::Time deadline = std::min(absl::Now() + FromMilliseconds(request->wait_ms()),
                                       absl::FromChrono(context->deadline()));
  absl::StatusOr<BrokerTenants::Held> held =
      broker_->tenants().End(request->tenant(), OwnerOf(*request), Caller(context), deadline,
                             [&] { return ended_ || context->IsCancelled(); });
  if (!held.ok()) return ToAnswer(held.status());
  spdlog::info("tenant {} was ended by an operator{}", request->tenant(),
               held->gone ? "" : "; it still holds something");
  *response = ToProto(*held);
  return grpc::Status::OK;
}

grpc::Status AdminService::GetHistory(grpc::ServerContext*, const v1::GetHistoryRequest* request,
                                      v1::GetHistoryResponse* response) {
  absl::StatusOr<v1::GetHistoryResponse> history = hooks_.history(*request);
  if (!history.ok()) return ToAnswer(history.status());
  *response = *std::move(history);
  return grpc::Status::OK;
}

}  // namespace gpumemd
