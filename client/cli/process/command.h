// SPDX-License-Identifier: Apache-2.0
// gpumemctl suspend --process and resume --process, with the daemon, the driver and this machine.
#pragma once

#include "absl/status/status.h"
#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// Requires command.process. Statuses as WholeProcess, and
//   UNIMPLEMENTED  the driver cannot do it: nothing was asked of the daemon or the process
//   CANCELLED      the answer to the question was not yes
absl::Status RunOnProcess(const SuspendCommand& command, const GlobalOptions& options);

}  // namespace gpumem::cli
