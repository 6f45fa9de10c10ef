// SPDX-License-Identifier: Apache-2.0
// The [audit] table of the configuration.
#pragma once

#include "daemon/config/config.h"
#include "daemon/config/toml_reader.h"

namespace gpumemd {

void ReadAudit(const toml::value& table, Mistakes* mistakes, AuditConfig* config);

}  // namespace gpumemd
