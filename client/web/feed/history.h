// SPDX-License-Identifier: Apache-2.0
// The last hour of tenants for the page. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/web/feed/privacy.h"
#include "proto/gpumem/v1/history.pb.h"

namespace gpumem::web {

// Returns {"interval_ms", "since_ms", "now_ms", "series": [{"tenant", "device_uuid", "cut",
// "points":
// [[time_ms, charged, limit, guarantee, waiting, leased], …]}]} on one line. Tenants
// that are not visible, or have such under them, are left out, and so are points from before a
// visible one was made. `visible` null: all are visible.
std::string HistoryText(const v1::GetHistoryResponse& history, const VisibleTenants* visible);

// Returns those of `wanted`, of all visible tenants if it is empty, that HistoryText() shows.
// Sorted.
std::vector<std::string> TenantsWithHistory(const std::vector<std::string>& wanted,
                                            const VisibleTenants& visible);

// Checks that each is visible. NOT_FOUND: the same error as for tenants that do not exist.
absl::Status CheckVisible(const std::vector<std::string>& tenants, const VisibleTenants* visible);

}  // namespace gpumem::web
