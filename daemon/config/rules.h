// The [[rule]] tables of the configuration.
#pragma once

#include "absl/strings/string_view.h"
#include "daemon/config/config.h"
#include "daemon/config/toml_reader.h"

namespace gpumemd {

// Reads one, and adds it to config->rules. The tenants are there already.
void ReadRule(const toml::value& table, const NameLookup& names, Mistakes* mistakes,
              Config* config);

// Everybody is a tenant of his own.
Rule EverybodyRule();

// Whether one of the configuration's rules may make somebody `tenant`.
bool CanBeNamed(const Config& config, absl::string_view tenant);

}  // namespace gpumemd
