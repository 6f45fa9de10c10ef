// SPDX-License-Identifier: Apache-2.0
// What another node says of itself. Has no I/O.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::web {

// Returns the known members of an overview, with bounded lists and texts, as a JSON document. The
// text is another node's, and untrusted.
//   INVALID_ARGUMENT  it is no overview
absl::StatusOr<std::string> CleanOverview(absl::string_view text);

}  // namespace gpumem::web
