// SPDX-License-Identifier: Apache-2.0
// Messages of the daemon as JSON for the page: names, units and words of `gpumemctl -o json`
// (client/cli/text/json.h), but
//
//   defaults   members that are zero, empty, false or absent are left out; an optional field that
//   is
//              set is kept, also if it is zero
//   durations  are times (Unix milliseconds), which stay the same from one document to the next:
//              age_ms -> since_ms, idle_ms -> idle_since_ms, uptime_ms -> started_ms,
//              expires_in_ms -> expires_at_ms
//   left out   byte_seconds, which is another number in each answer
//
// Pure.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gpumem::web {

// Times of objects, computed from durations of several answers. The daemon counts a duration until
// it answers, so that the time differs by the call's latency in each. Keeps the first time until
// another differs by more than a second.
class StableTimes {
 public:
  // Begins an answer: times that the answer before did not ask for are forgotten.
  void Begin(absl::Time now);
  absl::Time now() const { return now_; }

  // Returns the time `age_ms` before now() (after, if negative) of an object and field, identified
  // by a hash. A collision of hashes of times that are nearly equal moves one by a second at most.
  int64_t Before(size_t identity, int64_t age_ms);

 private:
  absl::Time now_;
  absl::flat_hash_map<size_t, int64_t> times_, earlier_;
};

// Appends `message` as a JSON object. `identity` tells the object from all others in `times`.
void AppendCompact(const google::protobuf::Message& message, size_t identity, StableTimes& times,
                   std::string* json);

// Appends a JSON string. Characters that act on terminals or reorder text are escaped; invalid
// UTF-8 is replaced. The string has no line break.
void AppendQuoted(absl::string_view text, std::string* json);

}  // namespace gpumem::web
