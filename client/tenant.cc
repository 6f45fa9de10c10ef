// SPDX-License-Identifier: Apache-2.0
#include "gpumem/tenant.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/session/session.h"
#include "client/session/tenants/own_tenants.h"
#include "gpumem/client.h"

namespace gpumem {
namespace {

v1::Quota ToProto(const TenantLimits& limits) {
  v1::Quota quota;
  if (limits.limit_bytes) quota.set_limit_bytes(*limits.limit_bytes);
  for (const auto& [uuid, bytes] : limits.device_limits) {
    v1::DeviceLimit& limit = *quota.add_devices();
    limit.set_device_uuid(uuid);
    limit.set_limit_bytes(bytes);
  }
  if (limits.total_limit_bytes) quota.set_total_limit_bytes(*limits.total_limit_bytes);
  if (limits.pinned_limit_bytes) quota.set_pinned_limit_bytes(*limits.pinned_limit_bytes);
  if (limits.tier_limit_bytes) quota.set_tier_limit_bytes(*limits.tier_limit_bytes);
  if (limits.max_segments) quota.set_max_segments(*limits.max_segments);
  if (limits.max_sessions) quota.set_max_sessions(*limits.max_sessions);
  if (limits.max_waiting) quota.set_max_waiting(*limits.max_waiting);
  if (limits.priority) quota.set_priority(*limits.priority);
  if (limits.preload) {
    quota.set_preload(*limits.preload == PreloadMode::kBroker ? v1::PRELOAD_MODE_BROKER
                                                              : v1::PRELOAD_MODE_ACCOUNT);
  }
  return quota;
}

}  // namespace

absl::StatusOr<std::string> Client::CreateTenant(const TenantOptions& options) {
  if (options.lasting && options.name.empty()) {
    return absl::InvalidArgumentError("a lasting tenant needs a name");
  }
  v1::CreateChildTenantRequest request;
  // Chosen here, so that a call that is repeated to the next daemon makes one tenant.
  request.set_name(options.name.empty()
                       ? absl::StrCat("run-", session_id(), "-", session_->NewRequestId())
                       : options.name);
  request.set_lasting(options.lasting);
  *request.mutable_quota() = ToProto(options.limits);
  absl::StatusOr<v1::CreateChildTenantResponse> response =
      internal::OwnTenants(session_.get()).Create(request, session_->Deadline(std::nullopt));
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_tenant());
}

absl::Status Client::UpdateTenant(absl::string_view tenant, const TenantLimits& limits,
                                  absl::Span<const std::string> clear) {
  v1::UpdateChildTenantRequest request;
  request.set_tenant(std::string(tenant));
  *request.mutable_quota() = ToProto(limits);
  for (const std::string& field : clear) {
    request.add_clear(field == "device_limits" ? "devices" : field);
  }
  return internal::OwnTenants(session_.get())
      .Update(request, session_->Deadline(std::nullopt))
      .status();
}

absl::StatusOr<TenantRemains> Client::EndTenant(absl::string_view tenant) {
  v1::EndChildTenantRequest request;
  request.set_tenant(std::string(tenant));
  absl::StatusOr<v1::EndTenantResponse> response =
      internal::OwnTenants(session_.get()).End(request, session_->Deadline(std::nullopt));
  if (absl::IsNotFound(response.status())) return TenantRemains{.gone = true};
  if (!response.ok()) return response.status();
  TenantRemains remains{.gone = response->gone(), .sessions = response->session_count()};
  for (const v1::HeldBytes& device : response->devices()) {
    remains.device_bytes.emplace(device.device_uuid(), device.bytes());
  }
  return remains;
}

absl::StatusOr<std::vector<MadeTenant>> Client::ListTenants() {
  absl::StatusOr<v1::ListChildTenantsResponse> response =
      internal::OwnTenants(session_.get()).List(session_->Deadline(std::nullopt));
  if (!response.ok()) return response.status();
  std::vector<MadeTenant> tenants;
  for (const v1::TenantInfo& tenant : response->tenants()) {
    tenants.push_back({.name = tenant.usage().tenant(),
                       .lasting = tenant.made().lasting(),
                       .ending = tenant.made().ending(),
                       .created = absl::FromUnixMillis(tenant.made().created_ms()),
                       .charged_bytes = tenant.usage().charged_bytes(),
                       .sessions = tenant.usage().sessions()});
  }
  return tenants;
}

}  // namespace gpumem
