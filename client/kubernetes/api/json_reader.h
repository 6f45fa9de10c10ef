// SPDX-License-Identifier: Apache-2.0
// Reads untrusted JSON: no exception leaves it, and members of the wrong type are absent.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::kubernetes {

using Json = nlohmann::json;

// Members of the name "managedFields" are left out, and so are values deeper than `most_depth`: one
// object of a list, which any user may have made, does not hide the others.
//   INVALID_ARGUMENT    it is no JSON object
//   RESOURCE_EXHAUSTED  it has more bytes than `most_bytes`, or more levels than Kubernetes takes
absl::StatusOr<Json> ParseJson(absl::string_view text, size_t most_bytes, int most_depth);

// Returns the member, or null if there is none.
const Json& Member(const Json& object, const char* name);
// Returns the member if it is an object or array; an empty one otherwise.
const Json& Object(const Json& object, const char* name);
const Json& Array(const Json& object, const char* name);
// Returns the member if it is a text of at most `most` printable ASCII characters; "" otherwise.
std::string Text(const Json& object, const char* name, size_t most);
// True if the member is true.
bool Flag(const Json& object, const char* name);

}  // namespace gpumem::kubernetes
