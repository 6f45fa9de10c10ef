// SPDX-License-Identifier: Apache-2.0
// What a tenant has used over time: as an operator, or as a user.
#include <memory>
#include <string>

#include "client/cli/commands/admin_calls.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/commands/output.h"
#include "client/cli/commands/worker_session.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/views/views.h"
#include "client/session/tenants/own_tenants.h"

namespace gpumem::cli {
namespace {

absl::Status PrintUsage(const absl::StatusOr<v1::GetTenantUsageResponse>& response,
                        const DeviceList& devices, const GlobalOptions& options) {
  if (absl::IsUnimplemented(response.status())) {
    return absl::UnimplementedError("the daemon is older than gpumemctl usage; upgrade it");
  }
  if (!response.ok()) return response.status();
  Print(options.json ? Document(ToJson(*response))
                     : UsageView(*response, devices, options.exact, LayoutFor(options)));
  return absl::OkStatus();
}

}  // namespace

absl::Status Run(const UsageCommand& command, const GlobalOptions& options) {
  v1::GetTenantUsageRequest request;
  request.set_tenant(command.tenant);
  if (!command.tenant.empty()) {
    auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
    if (admin.ok()) {
      auto response = Call(**admin, &v1::Admin::Stub::GetTenantUsage, request);
      if (!response.ok()) return PrintUsage(response, {}, options);
      absl::StatusOr<DeviceList> devices = Devices(**admin);
      if (!devices.ok()) return devices.status();
      return PrintUsage(response, *devices, options);
    }
    // A user who is no operator may ask for the own jobs.
    if (!absl::IsPermissionDenied(admin.status())) return admin.status();
  }
  auto session = ConnectAsWorker(options, "");
  if (!session.ok()) return session.status();
  const v1::Welcome& welcome = (*session)->welcome();
  if (command.tenant.empty()) request.set_tenant(welcome.tenant());
  return PrintUsage(internal::OwnTenants(session->get()).Usage(request, (*session)->Deadline({})),
                    DeviceList(welcome.devices().begin(), welcome.devices().end()), options);
}

}  // namespace gpumem::cli
