// SPDX-License-Identifier: Apache-2.0
// The commands that are one or two calls on the admin socket.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/terminal.h"
#include "client/cli/views/device_list.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

absl::StatusOr<DeviceList> Devices(AdminConnection& admin) {
  auto status = Call(admin, &Admin::Stub::GetStatus, v1::GetStatusRequest());
  if (!status.ok()) return status.status();
  return DeviceList(status->devices().begin(), status->devices().end());
}

size_t Width(const GlobalOptions& options) { return Stdout(options.no_color).columns; }

// Replaces the device that the user named by its UUID; an empty name stays empty.
absl::Status Resolve(AdminConnection& admin, std::string* device) {
  if (device->empty()) return absl::OkStatus();
  absl::StatusOr<DeviceList> devices = Devices(admin);
  if (!devices.ok()) return devices.status();
  absl::StatusOr<std::string> uuid = ResolveDevice(*devices, *device);
  if (!uuid.ok()) return uuid.status();
  *device = *std::move(uuid);
  return absl::OkStatus();
}

absl::Status PrintPools(AdminConnection& admin, const PoolList& pools,
                        const GlobalOptions& options) {
  absl::StatusOr<DeviceList> devices = Devices(admin);
  if (!devices.ok()) return devices.status();
  Print(PoolsView(pools, *devices, options.exact));
  return absl::OkStatus();
}

// The common part of SetPool and TrimPool: a call about one pool, which returns the pool.
template <typename Request>
absl::Status RunOnPool(grpc::Status (Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                           v1::PoolInfo*),
                       Request request, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  if (auto status = Resolve(**admin, request.mutable_device_uuid()); !status.ok()) return status;
  absl::StatusOr<v1::PoolInfo> pool = Call(**admin, method, request);
  if (!pool.ok()) return pool.status();
  if (!options.json) return PrintPools(**admin, {*pool}, options);
  Print(Pretty(ToJson(*pool)));
  return absl::OkStatus();
}

absl::Status PrintQuota(AdminConnection& admin, const v1::GetQuotaResponse& response,
                        const GlobalOptions& options) {
  absl::StatusOr<DeviceList> devices = Devices(admin);
  if (!devices.ok()) return devices.status();
  Print(options.json ? Pretty(QuotaJson(response, /*knows_overridden=*/true))
                     : QuotaView(response, *devices, options.exact, Width(options)));
  return absl::OkStatus();
}

}  // namespace

absl::Status Run(const StatusCommand&, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  auto response = Call(**admin, &Admin::Stub::GetStatus, v1::GetStatusRequest());
  if (!response.ok()) return response.status();
  Print(options.json ? Pretty(ToJson(*response)) : StatusView(*response, options.exact));
  return absl::OkStatus();
}

absl::Status Run(const PsCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  v1::ListSessionsRequest request;
  request.set_tenant(command.tenant);
  auto response = Call(**admin, &Admin::Stub::ListSessions, request);
  if (!response.ok()) return response.status();
  v1::ListWaitingRequest of_those;
  of_those.set_tenant(command.tenant);
  auto waiting = Call(**admin, &Admin::Stub::ListWaiting, of_those);
  // The tenant's last session may have ended in between.
  if (absl::IsNotFound(waiting.status())) waiting = v1::ListWaitingResponse();
  if (!waiting.ok()) return waiting.status();
  if (options.json) {
    Json both = ToJson(*response);
    both["waiting"] = ToJson(*waiting)["waiting"];
    Print(Pretty(both));
    return absl::OkStatus();
  }
  absl::StatusOr<DeviceList> devices = Devices(**admin);
  if (!devices.ok()) return devices.status();
  Print(absl::StrCat(SessionsView(*response, options.exact, Width(options)),
                     WaitingView(*waiting, *devices, options.exact, Width(options))));
  return absl::OkStatus();
}

absl::Status Run(const SegmentsCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  v1::ListSegmentsRequest request;
  request.set_tenant(command.tenant);
  request.set_device_uuid(command.device);
  if (auto status = Resolve(**admin, request.mutable_device_uuid()); !status.ok()) return status;
  auto response = Call(**admin, &Admin::Stub::ListSegments, request);
  if (!response.ok()) return response.status();
  if (options.json) {
    Print(Pretty(ToJson(*response)));
    return absl::OkStatus();
  }
  absl::StatusOr<DeviceList> devices = Devices(**admin);
  if (!devices.ok()) return devices.status();
  Print(SegmentsView(*response, *devices, options.exact, Width(options)));
  return absl::OkStatus();
}

absl::Status RunUnpublishOf(const std::string& full_name, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  v1::UnpublishRequest request;
  request.set_name(full_name);
  auto response = Call(**admin, &Admin::Stub::Unpublish, request);
  if (!response.ok()) return response.status();
  Print(options.json ? Pretty(ToJson(*response)) : UnpublishedView(full_name, *response));
  return absl::OkStatus();
}

absl::Status Run(const QuotaListCommand&, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  auto response = Call(**admin, &Admin::Stub::ListTenants, v1::ListTenantsRequest());
  if (!response.ok()) return response.status();
  Print(options.json ? Pretty(ToJson(*response))
                     : TenantsView(*response, options.exact, Width(options)));
  return absl::OkStatus();
}

absl::Status Run(const QuotaSetCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  v1::SetQuotaRequest request = command.request;
  for (v1::DeviceLimit& limit : *request.mutable_quota()->mutable_devices()) {
    if (auto status = Resolve(**admin, limit.mutable_device_uuid()); !status.ok()) return status;
  }
  for (v1::DeviceGuarantee& guarantee : *request.mutable_quota()->mutable_guarantees()) {
    auto status = Resolve(**admin, guarantee.mutable_device_uuid());
    if (!status.ok()) return status;
  }
  auto response = Call(**admin, &Admin::Stub::SetQuota, request);
  if (!response.ok()) return response.status();
  return PrintQuota(**admin, *response, options);
}

absl::Status Run(const QuotaUnsetCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  auto response = Call(**admin, &Admin::Stub::UnsetQuota, command.request);
  if (!response.ok()) return response.status();
  return PrintQuota(**admin, *response, options);
}

absl::Status RunQuotaOf(const std::string& tenant, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  v1::GetQuotaRequest request;
  request.set_tenant(tenant);
  auto response = Call(**admin, &Admin::Stub::GetQuota, request);
  if (!response.ok()) return response.status();
  return PrintQuota(**admin, *response, options);
}

absl::Status Run(const PoolListCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  v1::ListPoolsRequest request;
  request.set_tenant(command.tenant);
  request.set_device_uuid(command.device);
  if (auto status = Resolve(**admin, request.mutable_device_uuid()); !status.ok()) return status;
  auto response = Call(**admin, &Admin::Stub::ListPools, request);
  if (!response.ok()) return response.status();
  if (!options.json) {
    return PrintPools(**admin, {response->pools().begin(), response->pools().end()}, options);
  }
  Print(Pretty(ToJson(*response)));
  return absl::OkStatus();
}

absl::Status Run(const PoolSetCommand& command, const GlobalOptions& options) {
  return RunOnPool(&Admin::Stub::SetPool, command.request, options);
}

absl::Status Run(const PoolTrimCommand& command, const GlobalOptions& options) {
  return RunOnPool(&Admin::Stub::TrimPool, command.request, options);
}

absl::Status Run(const TrimCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  v1::TrimRequest request;
  request.set_tenant(command.tenant);
  request.set_device_uuid(command.device);
  request.set_keep_bytes(command.keep_bytes);
  if (auto status = Resolve(**admin, request.mutable_device_uuid()); !status.ok()) return status;
  auto response = Call(**admin, &Admin::Stub::Trim, request);
  if (!response.ok()) return response.status();
  if (options.json) {
    Print(Pretty(ToJson(*response)));
  } else if (response->released_segments() == 0) {
    Print("No retained memory to return.\n");
  } else {
    Print(absl::StrCat("Returned ", Size(response->released_bytes(), options.exact), " in ",
                       Counted(response->released_segments(), "segment"), ".\n"));
  }
  return absl::OkStatus();
}

absl::Status Run(const DrainCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  v1::DrainRequest request;
  request.set_resume(command.resume);
  auto response = Call(**admin, &Admin::Stub::Drain, request);
  if (!response.ok()) return response.status();
  if (options.json) {
    Print(Pretty(ToJson(*response)));
  } else if (response->draining()) {
    Print(absl::StrCat("Draining: no new sessions or requests are admitted; remaining sessions: ",
                       response->sessions(), ", segments: ", response->segments(),
                       ". Undo with gpumemctl drain --resume.\n"));
  } else {
    Print("Admitting new sessions and requests again.\n");
  }
  return absl::OkStatus();
}

absl::Status Run(const ReloadCommand&, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();
  auto response = Call(**admin, &Admin::Stub::Reload, v1::ReloadRequest());
  if (!response.ok()) return response.status();
  Print(options.json ? Pretty(ToJson(*response)) : ReloadView(*response));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
