// SPDX-License-Identifier: Apache-2.0
// The paths of the server. Has no I/O.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::web {

enum class Route {
  kFile,  // of the page
  kMe,
  kSnapshot,
  kHistory,
  kStream,
  kOverview,
  kPeers,
  kLinks,  // POST
  kLogin,  // POST
  kNone,   // 404
};

// Returns the route of a request's target. Paths are compared as they are, and not decoded: no path
// leads out of the page's files.
Route RouteOf(absl::string_view target);

// Returns the path of a target: without the query.
absl::string_view PathOf(absl::string_view target);

// The series that a request asks for.
struct HistoryQuery {
  static constexpr size_t kMostTenants = 16;
  std::string device;  // empty: all
  std::vector<std::string> tenants;
};

// Parses the query of a target.
//   INVALID_ARGUMENT  an unknown or repeated parameter, too many tenants, or no UTF-8
absl::StatusOr<HistoryQuery> ParseHistoryQuery(absl::string_view target);

}  // namespace gpumem::web
