// SPDX-License-Identifier: Apache-2.0
// The sections [host], [pinned] and [tier] of the configuration: host memory.
#pragma once

#include "daemon/config/config.h"
#include "daemon/config/toml_reader.h"

namespace gpumemd {

void ReadHost(const toml::value& table, Mistakes* mistakes, Config* config);

void ReadPinned(const toml::value& table, Mistakes* mistakes, SizeLimit* capacity);

void ReadTier(const toml::value& table, Mistakes* mistakes, TierConfig* config);

}  // namespace gpumemd
