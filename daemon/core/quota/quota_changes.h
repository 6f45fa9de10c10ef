// SPDX-License-Identifier: Apache-2.0
// The differences between two quotas, for the audit.
#pragma once

#include <string>
#include <vector>

#include "daemon/core/quota/quota.h"

namespace gpumemd {

// Returns "limit_bytes: none -> 1024", one for each field that differs, named as in
// gpumem.v1.Quota. Those of single devices have their UUID: "devices GPU-…: 1024 -> none".
std::vector<std::string> QuotaChanges(const Quota& from, const Quota& to);

}  // namespace gpumemd
