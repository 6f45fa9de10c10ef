// SPDX-License-Identifier: Apache-2.0
// The state as one viewer sees it, as texts of JSON, and the changes from one state to the next.
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cli/views/snapshot.h"
#include "client/web/feed/compact.h"

namespace gpumem::web {

// The lists whose objects have keys, in the document's order.
inline constexpr std::array<absl::string_view, 7> kLists = {
    "devices", "tenants", "sessions", "segments", "leases", "published", "publications"};

struct Document {
  struct Object {
    std::string key;   // JSON: a string, or a number. Unique in its list
    std::string text;  // JSON
  };

  std::string sees;    // "all", "own" or "none"
  std::string status;  // JSON
  std::array<std::vector<Object>, kLists.size()> lists;
  std::string waiting;  // JSON: an array, as it has no keys
};

// Of tenants without sessions, memory and requests, obtainable_bytes is left out. `times` must have
// begun this snapshot's answer.
Document MakeDocument(const cli::Snapshot& snapshot, absl::string_view sees, StableTimes& times);

// Returns the whole document as JSON on one line.
std::string DocumentText(const Document& document, uint64_t number, absl::Time now);

// Returns what has changed, as JSON on one line: {"number", "time_ms"}, and the parts that differ.
// Of a list {"set": [objects that are new or differ], "gone": [keys]}. nullopt: nothing. Requires
// that both have the same `sees`. Costs time in proportion to the objects.
std::optional<std::string> ChangeText(const Document& from, const Document& to, uint64_t number,
                                      absl::Time now);

// Returns a server-sent event.
std::string ServerSentEvent(absl::string_view name, absl::string_view json);

}  // namespace gpumem::web
