// SPDX-License-Identifier: Apache-2.0
// Devices as a worker's commands name them.
#pragma once

#include "absl/status/statusor.h"
#include "client/cli/views/device_list.h"
#include "gpumem/client.h"

namespace gpumem::cli {

// Returns the daemon's devices in the protocol's form, which the rest of gpumemctl uses. Statuses
// as Client::Devices.
absl::StatusOr<DeviceList> ListDevices(Client& client);

// Returns the client's name of the device that the user named. A number is the daemon's index, as
// in the other commands; the client would take it for CUDA's ordinal. Other names stay as they are.
//   NOT_FOUND  there is no device of that index
absl::StatusOr<DeviceName> DeviceForClient(const DeviceList& devices, const DeviceName& name);
absl::StatusOr<DeviceName> DeviceForClient(Client& client, const DeviceName& name);

}  // namespace gpumem::cli
