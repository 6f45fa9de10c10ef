// SPDX-License-Identifier: Apache-2.0
// The commands about tenants that are made at run time: for operators, and for users below their
// own tenant (own_tenants.h).
#include <string>

#include "absl/time/time.h"
#include "client/cli/commands/admin_calls.h"
#include "client/cli/commands/caution.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/commands/output.h"
#include "client/cli/commands/own_tenants.h"
#include "client/cli/effects/effects.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

// Replaces the devices that the user named by their UUIDs.
absl::Status ResolveDevices(AdminConnection& admin, v1::Quota* quota) {
  for (v1::DeviceLimit& limit : *quota->mutable_devices()) {
    if (auto status = Resolve(admin, limit.mutable_device_uuid()); !status.ok()) return status;
  }
  for (v1::DeviceGuarantee& guarantee : *quota->mutable_guarantees()) {
    if (auto status = Resolve(admin, guarantee.mutable_device_uuid()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status PrintTenant(AdminConnection& admin, const v1::TenantInfo& tenant,
                         const GlobalOptions& options) {
  if (options.json) {
    Print(Document(ToJson(tenant)));
    return absl::OkStatus();
  }
  v1::GetQuotaResponse quota;
  *quota.mutable_quota() = tenant.quota();
  *quota.mutable_usage() = tenant.usage();
  *quota.mutable_overridden() = tenant.overridden();
  return PrintQuota(admin, quota, options);
}

template <typename Command, typename Request>
absl::Status MakeOrChange(grpc::Status (Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                              v1::TenantInfo*),
                          const Command& command, const GlobalOptions& options) {
  if (command.own) return RunOwn(command, options);
  Request request = command.request;
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (absl::IsPermissionDenied(admin.status())) return RunOwn(command, options);
  if (!admin.ok()) return admin.status();
  absl::Status resolved = ResolveDevices(**admin, request.mutable_quota());
  if (!resolved.ok()) return resolved;
  auto tenant = Call(**admin, method, request);
  if (!tenant.ok()) return tenant.status();
  return PrintTenant(**admin, *tenant, options);
}

}  // namespace

absl::Status Run(const TenantListCommand& command, const GlobalOptions& options) {
  if (command.own) return RunOwn(command, options);
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (absl::IsPermissionDenied(admin.status())) return RunOwn(command, options);
  if (!admin.ok()) return admin.status();
  auto all = Call(**admin, &Admin::Stub::ListTenants, v1::ListTenantsRequest());
  if (!all.ok()) return all.status();
  v1::ListTenantsResponse made;
  for (v1::TenantInfo& tenant : *all->mutable_tenants()) {
    if (tenant.has_made()) *made.add_tenants() = std::move(tenant);
  }
  Print(options.json ? Document(ToJson(made))
                     : MadeTenantsView(made, options.exact, LayoutFor(options)));
  return absl::OkStatus();
}

absl::Status Run(const TenantCreateCommand& command, const GlobalOptions& options) {
  return MakeOrChange(&Admin::Stub::CreateTenant, command, options);
}

absl::Status Run(const TenantUpdateCommand& command, const GlobalOptions& options) {
  return MakeOrChange(&Admin::Stub::UpdateTenant, command, options);
}

absl::Status Run(const TenantEndCommand& command, const GlobalOptions& options) {
  if (command.own) return RunOwn(command, options);
  const absl::Duration wait = absl::Milliseconds(command.request.wait_ms());
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout.value_or(kCallTimeout) + wait);
  if (absl::IsPermissionDenied(admin.status())) return RunOwn(command, options);
  if (!admin.ok()) return admin.status();
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    auto tenants = Call(**admin, &Admin::Stub::ListTenants, v1::ListTenantsRequest());
    if (!tenants.ok()) return tenants.status();
    return TenantEndEffects(command.request, *tenants, options.exact);
  };
  absl::StatusOr<bool> proceed = Proceed(command.caution, "tenant end", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  auto held = Call(**admin, &Admin::Stub::EndTenant, command.request);
  if (!held.ok()) return held.status();
  Print(options.json ? Document(ToJson(*held))
                     : EndedTenantView(command.request.tenant(), *held, options.exact));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
