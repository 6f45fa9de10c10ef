// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/admin_calls.h"

#include <utility>

#include "client/cli/commands/output.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {

using v1::Admin;

absl::StatusOr<DeviceList> Devices(AdminConnection& admin) {
  auto status = Call(admin, &Admin::Stub::GetStatus, v1::GetStatusRequest());
  if (!status.ok()) return status.status();
  return DeviceList(status->devices().begin(), status->devices().end());
}

absl::Status Resolve(AdminConnection& admin, std::string* device) {
  if (device->empty()) return absl::OkStatus();
  absl::StatusOr<DeviceList> devices = Devices(admin);
  if (!devices.ok()) return devices.status();
  absl::StatusOr<std::string> uuid = ResolveDevice(*devices, *device);
  if (!uuid.ok()) return uuid.status();
  *device = *std::move(uuid);
  return absl::OkStatus();
}

absl::Status PrintPools(AdminConnection& admin, const std::vector<v1::PoolInfo>& pools,
                        const GlobalOptions& options) {
  absl::StatusOr<DeviceList> devices = Devices(admin);
  if (!devices.ok()) return devices.status();
  Print(PoolsView(pools, *devices, options.exact, LayoutFor(options)));
  return absl::OkStatus();
}

absl::Status PrintQuota(AdminConnection& admin, const v1::GetQuotaResponse& response,
                        const GlobalOptions& options) {
  absl::StatusOr<DeviceList> devices = Devices(admin);
  if (!devices.ok()) return devices.status();
  Print(options.json ? Document(QuotaJson(response, /*knows_overridden=*/true))
                     : QuotaView(response, *devices, options.exact, LayoutFor(options)));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
