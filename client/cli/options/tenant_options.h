// SPDX-License-Identifier: Apache-2.0
// The commands about tenants that are made at run time.
#pragma once

namespace gpumem::cli {

class CommandSet;

void AddTenantCommands(CommandSet* commands);

}  // namespace gpumem::cli
