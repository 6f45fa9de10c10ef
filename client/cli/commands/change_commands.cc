// SPDX-License-Identifier: Apache-2.0
// The commands on the admin socket that change the state of the daemon.
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/commands/admin_calls.h"
#include "client/cli/commands/caution.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/effects/effects.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

template <typename Request>
using PoolEffectsOf = absl::StatusOr<Effects> (*)(const Request&, const std::vector<v1::PoolInfo>&,
                                                  const DeviceList&, bool);

// The common part of SetPool and TrimPool: a call about one pool, which returns the pool.
template <typename Request>
absl::Status RunOnPool(grpc::Status (Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                           v1::PoolInfo*),
                       Request request, const Caution& caution, const char* what,
                       PoolEffectsOf<Request> effects, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  if (auto status = Resolve(**admin, request.mutable_device_uuid()); !status.ok()) return status;
  const auto shown = [&]() -> absl::StatusOr<Effects> {
    v1::ListPoolsRequest of_tenant;
    of_tenant.set_tenant(request.tenant());
    auto pools = Call(**admin, &Admin::Stub::ListPools, of_tenant);
    if (!pools.ok()) return pools.status();
    auto devices = Devices(**admin);
    if (!devices.ok()) return devices.status();
    return effects(request, {pools->pools().begin(), pools->pools().end()}, *devices,
                   options.exact);
  };
  absl::StatusOr<bool> proceed = Proceed(caution, what, shown, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  absl::StatusOr<v1::PoolInfo> pool = Call(**admin, method, request);
  if (!pool.ok()) return pool.status();
  if (!options.json) return PrintPools(**admin, {*pool}, options);
  Print(Document(ToJson(*pool)));
  return absl::OkStatus();
}

absl::StatusOr<v1::GetQuotaResponse> QuotaOf(AdminConnection& admin, const std::string& tenant) {
  v1::GetQuotaRequest request;
  request.set_tenant(tenant);
  return Call(admin, &Admin::Stub::GetQuota, request);
}

}  // namespace

absl::Status RunUnpublishOf(const UnpublishCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  const std::string& full_name = command.name;
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    auto list = Call(**admin, &Admin::Stub::ListPublications, v1::ListPublicationsRequest());
    if (!list.ok()) return list.status();
    return UnpublishEffects(full_name, "", *list, options.exact);
  };
  absl::StatusOr<bool> proceed = Proceed(command.caution, "unpublish", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  v1::UnpublishRequest request;
  request.set_name(full_name);
  auto response = Call(**admin, &Admin::Stub::Unpublish, request);
  if (!response.ok()) return response.status();
  Print(options.json ? Document(ToJson(*response)) : UnpublishedView(full_name, *response));
  return absl::OkStatus();
}

absl::Status Run(const QuotaSetCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  v1::SetQuotaRequest request = command.request;
  for (v1::DeviceLimit& limit : *request.mutable_quota()->mutable_devices()) {
    if (auto status = Resolve(**admin, limit.mutable_device_uuid()); !status.ok()) return status;
  }
  for (v1::DeviceGuarantee& guarantee : *request.mutable_quota()->mutable_guarantees()) {
    auto status = Resolve(**admin, guarantee.mutable_device_uuid());
    if (!status.ok()) return status;
  }
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    auto now = QuotaOf(**admin, request.tenant());
    if (!now.ok()) return now.status();
    auto devices = Devices(**admin);
    if (!devices.ok()) return devices.status();
    return QuotaSetEffects(request, *now, *devices, options.exact);
  };
  absl::StatusOr<bool> proceed = Proceed(command.caution, "quota set", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  auto response = Call(**admin, &Admin::Stub::SetQuota, request);
  if (!response.ok()) return response.status();
  return PrintQuota(**admin, *response, options);
}

absl::Status Run(const QuotaUnsetCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    auto now = QuotaOf(**admin, command.request.tenant());
    if (!now.ok()) return now.status();
    return QuotaUnsetEffects(command.request, *now);
  };
  absl::StatusOr<bool> proceed = Proceed(command.caution, "quota unset", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  auto response = Call(**admin, &Admin::Stub::UnsetQuota, command.request);
  if (!response.ok()) return response.status();
  return PrintQuota(**admin, *response, options);
}

absl::Status Run(const PoolSetCommand& command, const GlobalOptions& options) {
  return RunOnPool(&Admin::Stub::SetPool, command.request, command.caution, "pool set",
                   PoolSetEffects, options);
}

absl::Status Run(const PoolTrimCommand& command, const GlobalOptions& options) {
  return RunOnPool(&Admin::Stub::TrimPool, command.request, command.caution, "pool trim",
                   PoolTrimEffects, options);
}

absl::Status Run(const TrimCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  v1::TrimRequest request;
  request.set_tenant(command.tenant);
  request.set_device_uuid(command.device);
  request.set_keep_bytes(command.keep_bytes);
  if (auto status = Resolve(**admin, request.mutable_device_uuid()); !status.ok()) return status;
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    auto tenants = Call(**admin, &Admin::Stub::ListTenants, v1::ListTenantsRequest());
    if (!tenants.ok()) return tenants.status();
    auto devices = Devices(**admin);
    if (!devices.ok()) return devices.status();
    return TrimEffects(request, *tenants, *devices, options.exact);
  };
  absl::StatusOr<bool> proceed = Proceed(command.caution, "trim", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  auto response = Call(**admin, &Admin::Stub::Trim, request);
  if (!response.ok()) return response.status();
  if (options.json) {
    Print(Document(ToJson(*response)));
  } else if (response->released_segments() == 0) {
    Print("No retained memory to return.\n");
  } else {
    Print(absl::StrCat("Returned ", Size(response->released_bytes(), options.exact), " in ",
                       Counted(response->released_segments(), "segment"), ".\n"));
  }
  return absl::OkStatus();
}

absl::Status Run(const DrainCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    auto status = Call(**admin, &Admin::Stub::GetStatus, v1::GetStatusRequest());
    if (!status.ok()) return status.status();
    return DrainEffects(*status, command.resume);
  };
  absl::StatusOr<bool> proceed =
      Proceed(command.caution, command.resume ? "undrain" : "drain", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  v1::DrainRequest request;
  request.set_resume(command.resume);
  auto response = Call(**admin, &Admin::Stub::Drain, request);
  if (!response.ok()) return response.status();
  if (options.json) {
    Print(Document(ToJson(*response)));
  } else if (response->draining()) {
    Print(absl::StrCat("Draining: no new sessions or requests are admitted; remaining sessions: ",
                       response->sessions(), ", segments: ", response->segments(),
                       ". Undo with gpumemctl undrain.\n"));
  } else {
    Print("Admitting new sessions and requests again.\n");
  }
  return absl::OkStatus();
}

absl::Status Run(const ReloadCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    auto checked = Call(**admin, &Admin::Stub::CheckReload, v1::CheckReloadRequest());
    if (!checked.ok()) return checked.status();
    return ReloadEffects(*checked);
  };
  absl::StatusOr<bool> proceed = Proceed(command.caution, "reload", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  auto response = Call(**admin, &Admin::Stub::Reload, v1::ReloadRequest());
  if (!response.ok()) return response.status();
  Print(options.json ? Document(ToJson(*response)) : ReloadView(*response));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
