// SPDX-License-Identifier: Apache-2.0
// The commands about tenants for users: tenants under the caller's own, by the client's protocol.
#pragma once

#include "absl/status/status.h"
#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// As Run(), with --own, or for a user who is no operator.
absl::Status RunOwn(const TenantListCommand& command, const GlobalOptions& options);
absl::Status RunOwn(const TenantCreateCommand& command, const GlobalOptions& options);
absl::Status RunOwn(const TenantUpdateCommand& command, const GlobalOptions& options);
absl::Status RunOwn(const TenantEndCommand& command, const GlobalOptions& options);

}  // namespace gpumem::cli
