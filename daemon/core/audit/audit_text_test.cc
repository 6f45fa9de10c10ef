// SPDX-License-Identifier: Apache-2.0
// Sentences and fields of records.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "daemon/core/audit/audit.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;

TEST(AuditTextTest, NamesWhatARecordHas) {
  EXPECT_EQ(Tell({.event = AuditEvent::kGranted,
                  .tenant = "a",
                  .session = SessionId{5},
                  .pid = 12,
                  .command = "python",
                  .call = "Acquire",
                  .device = "host-0",
                  .kind = "vmm",
                  .bytes = uint64_t{64} << 20,
                  .count = 2}),
            "granted to tenant a, session 5, pid 12 (python): 64.00 MiB of kind vmm on host-0, 2 "
            "segments (Acquire)");
  EXPECT_EQ(Tell({.event = AuditEvent::kRefused, .pid = 12, .why = "no rule"}),
            "refused pid 12: no rule");
  EXPECT_EQ(Tell({.event = AuditEvent::kTrimmed, .tenant = "a", .device = "host-0"}),
            "retained memory returned to the driver: 0 B of tenant a on host-0");
  EXPECT_EQ(Tell({.event = AuditEvent::kTenantMade, .session = SessionId{5}, .owner = "a:5.run"}),
            "tenant a:5.run by session 5 made");
  EXPECT_EQ(Tell({.event = AuditEvent::kPublicationResumed,
                  .session = SessionId{5},
                  .publication = "a/w",
                  .version = 3}),
            "publication a/w, version 3 resumed for session 5: 0 B");
  EXPECT_EQ(Tell({.event = AuditEvent::kLost, .session = SessionId{5}, .publication = "a/w"}),
            "lost by session 5: publication a/w, version 0");
  EXPECT_EQ(
      Tell({.event = AuditEvent::kSuppressed, .uid = 7, .of = "denied", .bytes = 1, .count = 2}),
      "2 more records of denied of uid 7 were left out: 1 B");
}

TEST(AuditTextTest, NamesOperatorsAndChanges) {
  AuditRecord record = {.event = AuditEvent::kReloaded};
  EXPECT_EQ(Tell(record), "configuration read again: no changes");
  record.by = {{.uid = 0, .pid = 12}};
  record.changes = {"x", "y"};
  EXPECT_EQ(Tell(record), "configuration read again: x; y, by uid 0 (pid 12)");
  record.by.push_back({.uid = 1, .pid = 13});
  EXPECT_EQ(Tell(record),
            "configuration read again: x; y, by one of uid 0 (pid 12), uid 1 (pid 13)");
  const std::vector<AuditField> fields = FieldsOf(record);
  ASSERT_EQ(fields.size(), 3u);
  EXPECT_EQ(fields[0].name, "change");
  EXPECT_THAT(fields[0].values, ElementsAre("x", "y"));
  EXPECT_THAT(fields[1].values, ElementsAre("0", "1"));
  EXPECT_THAT(fields[2].values, ElementsAre("12", "13"));
}

}  // namespace
}  // namespace gpumemd
