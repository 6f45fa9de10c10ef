// SPDX-License-Identifier: Apache-2.0
// gpumemctl map.
#include <string>
#include <vector>

#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/terminal.h"
#include "client/cli/views/device_list.h"
#include "client/cli/views/holdings.h"
#include "client/cli/views/map_view.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

Json HoldingJson(const Holding& holding) {
  Json json = Json::object();
  json["tenant"] = holding.tenant;
  json["leased_bytes"] = holding.leased;
  json["retained_bytes"] = holding.retained;
  json["lingering_bytes"] = holding.lingering;
  json["moving_bytes"] = holding.moving;
  json["held_bytes"] = holding.held();
  return json;
}

Json MapJson(const DeviceList& devices, const v1::ListTenantsResponse& tenants) {
  Json list = Json::array();
  for (const v1::Device& device : devices) {
    const DeviceHoldings holdings = HoldingsOn(device, tenants);
    Json json = Json::object();
    json["index"] = device.index();
    json["device_uuid"] = device.device_uuid();
    json["name"] = device.name();
    json["capacity_bytes"] = device.capacity_bytes();
    json["held_bytes"] = holdings.all.held();
    json["outside_bytes"] = holdings.outside;
    json["free_bytes"] = holdings.free;
    json["tenants"] = Json::array();
    for (const Holding& holding : holdings.tenants) {
      json["tenants"].push_back(HoldingJson(holding));
    }
    list.push_back(std::move(json));
  }
  Json json = Json::object();
  json["devices"] = std::move(list);
  return json;
}

}  // namespace

absl::Status Run(const MapCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  auto status = Call(**admin, &Admin::Stub::GetStatus, v1::GetStatusRequest());
  if (!status.ok()) return status.status();
  auto tenants = Call(**admin, &Admin::Stub::ListTenants, v1::ListTenantsRequest());
  if (!tenants.ok()) return tenants.status();
  DeviceList devices(status->devices().begin(), status->devices().end());
  if (!command.device.empty()) {
    absl::StatusOr<std::string> uuid = ResolveDevice(devices, command.device);
    if (!uuid.ok()) return uuid.status();
    std::erase_if(devices, [&](const v1::Device& each) { return each.device_uuid() != *uuid; });
  }
  if (options.json) {
    Print(Document(MapJson(devices, *tenants)));
    return absl::OkStatus();
  }
  const Output output = Stdout(options.color);
  const size_t columns = PictureWidth(output);
  Print(ToString(MapView(devices, *tenants,
                         {.columns = columns,
                          .rows = command.rows,
                          .exact = options.exact,
                          .headers = options.headers}),
                 output.colour, output.columns));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
