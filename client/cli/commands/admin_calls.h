// SPDX-License-Identifier: Apache-2.0
// What several commands on the admin socket do.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/commands/connection.h"
#include "client/cli/options/command_line.h"
#include "client/cli/views/device_list.h"

namespace gpumem::cli {

// Each also returns the statuses of the daemon's calls.

absl::StatusOr<DeviceList> Devices(AdminConnection& admin);

// Replaces the device that the user named by its UUID; an empty name stays empty. Statuses as
// ResolveDevice.
absl::Status Resolve(AdminConnection& admin, std::string* device);

absl::Status PrintPools(AdminConnection& admin, const std::vector<v1::PoolInfo>& pools,
                        const GlobalOptions& options);

absl::Status PrintQuota(AdminConnection& admin, const v1::GetQuotaResponse& response,
                        const GlobalOptions& options);

}  // namespace gpumem::cli
