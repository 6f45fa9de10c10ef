// SPDX-License-Identifier: Apache-2.0
// Checks between the tenants of a configuration, as opposed to those of a single tenant.
#pragma once

#include "daemon/config/config.h"
#include "daemon/config/toml_reader.h"

namespace gpumemd {

// Checks parents: they exist, without circles, and not too deep. Assigns the parent in
// tenant_defaults to tenants that inherit it.
void SettleParents(Mistakes* mistakes, Config* config);

// Checks guarantees as far as possible on any node: percentages alone and bytes alone. Requires
// SettleParents().
void CheckGuaranteesWritten(const Config& config, Mistakes* mistakes);

}  // namespace gpumemd
