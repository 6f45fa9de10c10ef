// SPDX-License-Identifier: Apache-2.0
// The [metrics] table of the configuration.
#pragma once

#include "daemon/config/config.h"
#include "daemon/config/toml_reader.h"

namespace gpumemd {

void ReadMetrics(const toml::value& table, const NameLookup& names, Mistakes* mistakes,
                 MetricsConfig* config);

}  // namespace gpumemd
