// SPDX-License-Identifier: Apache-2.0
// The commands on the admin socket that show the state of the daemon.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/commands/admin_calls.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/commands/output.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {

using v1::Admin;

absl::Status Run(const StatusCommand&, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  auto response = Call(**admin, &Admin::Stub::GetStatus, v1::GetStatusRequest());
  if (!response.ok()) return response.status();
  Print(options.json ? Document(ToJson(*response))
                     : StatusView(*response, options.exact, LayoutFor(options)));
  return absl::OkStatus();
}

absl::Status Run(const PsCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
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
    Print(Document(both));
    return absl::OkStatus();
  }
  absl::StatusOr<DeviceList> devices = Devices(**admin);
  if (!devices.ok()) return devices.status();
  Print(absl::StrCat(SessionsView(*response, options.exact, LayoutFor(options)),
                     WaitingView(*waiting, *devices, options.exact, LayoutFor(options))));
  return absl::OkStatus();
}

absl::Status Run(const SegmentsCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  v1::ListSegmentsRequest request;
  request.set_tenant(command.tenant);
  request.set_device_uuid(command.device);
  if (auto status = Resolve(**admin, request.mutable_device_uuid()); !status.ok()) return status;
  auto response = Call(**admin, &Admin::Stub::ListSegments, request);
  if (!response.ok()) return response.status();
  if (options.json) {
    Print(Document(ToJson(*response)));
    return absl::OkStatus();
  }
  absl::StatusOr<DeviceList> devices = Devices(**admin);
  if (!devices.ok()) return devices.status();
  Print(SegmentsView(*response, *devices, options.exact, LayoutFor(options)));
  return absl::OkStatus();
}

absl::Status Run(const QuotaListCommand&, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  auto response = Call(**admin, &Admin::Stub::ListTenants, v1::ListTenantsRequest());
  if (!response.ok()) return response.status();
  Print(options.json ? Document(ToJson(*response))
                     : TenantsView(*response, options.exact, LayoutFor(options)));
  return absl::OkStatus();
}

absl::Status RunQuotaOf(const std::string& tenant, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  v1::GetQuotaRequest request;
  request.set_tenant(tenant);
  auto response = Call(**admin, &Admin::Stub::GetQuota, request);
  if (!response.ok()) return response.status();
  return PrintQuota(**admin, *response, options);
}

absl::Status Run(const PoolListCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
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
  Print(Document(ToJson(*response)));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
