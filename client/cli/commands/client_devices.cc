// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/client_devices.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"

namespace gpumem::cli {
namespace {

bool IsIndex(const DeviceName& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
}

}  // namespace

absl::StatusOr<DeviceList> ListDevices(Client& client) {
  absl::StatusOr<std::vector<DeviceInfo>> devices = client.Devices();
  if (!devices.ok()) return devices.status();
  DeviceList list;
  for (const DeviceInfo& info : *devices) {
    v1::Device& device = list.emplace_back();
    // The daemon lists them by index.
    device.set_index(static_cast<uint32_t>(list.size() - 1));
    device.set_device_uuid(info.uuid);
    device.set_pci_bus_id(info.pci_bus_id);
  }
  return list;
}

absl::StatusOr<DeviceName> DeviceForClient(const DeviceList& devices, const DeviceName& name) {
  return IsIndex(name) ? ResolveDevice(devices, name) : name;
}

absl::StatusOr<DeviceName> DeviceForClient(Client& client, const DeviceName& name) {
  if (!IsIndex(name)) return name;
  absl::StatusOr<DeviceList> devices = ListDevices(client);
  if (!devices.ok()) return devices.status();
  return DeviceForClient(*devices, name);
}

}  // namespace gpumem::cli
