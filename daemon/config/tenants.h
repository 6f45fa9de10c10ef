// What has to hold between the tenants of a configuration, and not of each by itself.
#pragma once

#include "daemon/config/config.h"
#include "daemon/config/toml_reader.h"

namespace gpumemd {

// Who is under whom: that the parents are there, in no circle, and not too deep; and who of
// those that do not say so inherits the one in tenant_defaults.
void SettleParents(Mistakes* mistakes, Config* config);

// What CheckGuarantees finds on any node, by percentages alone and by bytes alone. The
// parents are settled.
void CheckGuaranteesWritten(const Config& config, Mistakes* mistakes);

}  // namespace gpumemd
