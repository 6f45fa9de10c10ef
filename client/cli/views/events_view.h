// SPDX-License-Identifier: Apache-2.0
// gpumemctl events: each record as a line. Pure.
#pragma once

#include "absl/time/time.h"
#include "client/cli/text/json.h"
#include "client/cli/text/styled.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::cli {

// Returns "23:04:05.123  granted          tenant …", in local time `zone`. A record of another day
// than `now` has its date before the time. A separate line before it reports missed records.
std::vector<Line> EventLines(const v1::EventRecord& record, absl::Time now, absl::TimeZone zone);

// {"number", "time", "event", …, "message"}, as in the audit; the fields between are the record's,
// by name. Numbers are numbers, lists are arrays, "time" is RFC 3339 in UTC.
Json EventJson(const v1::EventRecord& record);

}  // namespace gpumem::cli
