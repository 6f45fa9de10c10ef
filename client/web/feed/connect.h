// SPDX-License-Identifier: Apache-2.0
// Connections to the daemon, with errors for people who look at the page.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/commands/connection.h"

namespace gpumem::web {

// As cli::ConnectView. Its messages are for the user of a command; a viewer can neither use sudo
// nor name another folder, so these say what an administrator does, and name no path.
absl::StatusOr<std::unique_ptr<cli::AdminConnection>> ConnectDaemon(const std::string& runtime_dir,
                                                                    absl::Duration timeout);

}  // namespace gpumem::web
