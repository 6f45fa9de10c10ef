// gpumemctl events: one record as a line. Pure.
#pragma once

#include "absl/time/time.h"
#include "client/cli/text/json.h"
#include "client/cli/text/styled.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::cli {

// "23:04:05.123  granted          tenant …", in local time `zone`; with the day before what is of
// another one than `today`. Before it a line of its own for records that were missed.
std::vector<Line> EventLines(const v1::EventRecord& record, absl::Time now, absl::TimeZone zone);

// {"number", "time", "event", …, "message"}: as the audit has them; the fields between are the
// record's own, by name. Numbers are numbers, lists arrays, "time" as of RFC 3339 in UTC.
Json EventJson(const v1::EventRecord& record);

}  // namespace gpumem::cli
