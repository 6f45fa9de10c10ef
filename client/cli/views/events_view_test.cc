// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/events_view.h"

#include <gtest/gtest.h>

#include <string>

namespace gpumem::cli {
namespace {

v1::EventRecord Granted() {
  v1::EventRecord record;
  record.set_number(7);
  record.set_time_unix_ns(1'700'000'000'123'000'000);  // 2023-11-14 22:13:20.123 UTC
  record.set_event("granted");
  record.set_text("tenant a: 4.00 MiB\x1b[2J");
  v1::EventField* field = record.add_fields();
  field->set_name("tenant");
  field->add_values("a");
  field = record.add_fields();
  field->set_name("bytes");
  field->set_number(true);
  field->add_values("4194304");
  field = record.add_fields();
  field->set_name("leases");
  field->set_number(true);
  field->set_list(true);
  field->add_values("1");
  field->add_values("2");
  return record;
}

std::string Shown(const v1::EventRecord& record, absl::Time now) {
  return ToString(EventLines(record, now, absl::UTCTimeZone()), false, 200);
}

TEST(EventLinesTest, OneLineEach) {
  const absl::Time then = absl::FromUnixSeconds(1'700'000'000);
  EXPECT_EQ(Shown(Granted(), then), "22:13:20.123  granted            tenant a: 4.00 MiB?[2J\n");
  EXPECT_EQ(Shown(Granted(), then + absl::Hours(24)),
            "2023-11-14 22:13:20.123  granted            tenant a: 4.00 MiB?[2J\n");
  v1::EventRecord record = Granted();
  record.set_missed(3);
  record.set_event("publication-ended");
  EXPECT_EQ(Shown(record, then),
            "(3 records before this one are gone)\n"
            "22:13:20.123  publication-ended  tenant a: 4.00 MiB?[2J\n");
}

TEST(EventJsonTest, FieldsByName) {
  EXPECT_EQ(EventJson(Granted()).dump(),
            R"({"number":7,"time":"2023-11-14T22:13:20.123000Z","event":"granted","tenant":"a",)"
            R"("bytes":4194304,"leases":[1,2],"message":"tenant a: 4.00 MiB\u001b[2J"})");
}

}  // namespace
}  // namespace gpumem::cli
