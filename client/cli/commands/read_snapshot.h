// SPDX-License-Identifier: Apache-2.0
// Reads the daemon's state.
#pragma once

#include "absl/status/statusor.h"
#include "client/cli/commands/connection.h"
#include "client/cli/views/snapshot.h"

namespace gpumem::cli {

// Reads all lists, one after another. Leaves `contents` empty. Statuses as Call.
absl::StatusOr<Snapshot> ReadSnapshot(AdminConnection& admin);

}  // namespace gpumem::cli
