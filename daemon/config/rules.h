// SPDX-License-Identifier: Apache-2.0
// The [[rule]] tables of the configuration.
#pragma once

#include "absl/strings/string_view.h"
#include "daemon/config/config.h"
#include "daemon/config/toml_reader.h"

namespace gpumemd {

// Reads one, and adds it to config->rules. Requires the tenants to be there already.
void ReadRule(const toml::value& table, const NameLookup& names, Mistakes* mistakes,
              Config* config);

// Returns the rule that makes each user a separate tenant.
Rule EverybodyRule();

// True if one of the configuration's rules may assign `tenant` to a process.
bool CanBeNamed(const Config& config, absl::string_view tenant);

}  // namespace gpumemd
