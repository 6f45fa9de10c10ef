// SPDX-License-Identifier: Apache-2.0
// The ring, the filter, and the properties of each event.
#include "daemon/core/audit/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <syslog.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "daemon/core/audit/audit_filter.h"
#include "daemon/core/audit/audit_ring.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

AuditRecord Of(AuditEvent event, const std::string& tenant, absl::Duration after = {}) {
  return {.time = kStart + after, .event = event, .tenant = tenant};
}

std::vector<std::string> Tenants(const AuditRing::Batch& batch) {
  std::vector<std::string> tenants;
  for (const AuditRecord& record : batch.records) tenants.push_back(record.tenant);
  return tenants;
}

// "denied a", "suppressed a 3"
std::vector<std::string> Lines(const AuditRing& ring) {
  std::vector<std::string> lines;
  for (const AuditRecord& record : ring.Read(1, 1000).records) {
    lines.push_back(absl::StrCat(NameOf(record.event), " ", record.tenant,
                                 record.count ? absl::StrCat(" ", *record.count) : ""));
  }
  return lines;
}

TEST(AuditRingTest, NumbersRecordsFromOne) {
  AuditRing ring(10);
  EXPECT_EQ(ring.next(), 1u);
  ring.Record(Of(AuditEvent::kDenied, "a"));
  ring.Record(Of(AuditEvent::kDenied, "b"));
  const AuditRing::Batch batch = ring.Read(1, 10);
  EXPECT_THAT(Tenants(batch), ElementsAre("a", "b"));
  EXPECT_EQ(batch.records[1].number, 2u);
  EXPECT_EQ(batch.next, 3u);
  EXPECT_EQ(batch.missed, 0u);
  EXPECT_THAT(ring.Read(3, 10).records, IsEmpty());
}

TEST(AuditRingTest, AReaderThatIsSlowIsToldHowManyItMissed) {
  AuditRing ring(3);
  for (int i = 1; i <= 8; ++i) ring.Record(Of(AuditEvent::kDenied, absl::StrCat(i)));
  const AuditRing::Batch batch = ring.Read(2, 2);
  EXPECT_EQ(batch.missed, 4u);  // 2 to 5
  EXPECT_THAT(Tenants(batch), ElementsAre("6", "7"));
  const AuditRing::Batch rest = ring.Read(batch.next, 10);
  EXPECT_EQ(rest.missed, 0u);
  EXPECT_THAT(Tenants(rest), ElementsAre("8"));
  // A reader that asks for the oldest has missed nothing.
  EXPECT_EQ(ring.Read(0, 10).missed, 0u);
  EXPECT_THAT(Tenants(ring.Read(0, 10)), ElementsAre("6", "7", "8"));
}

TEST(AuditRingTest, WaitsForTheNextRecordAndForItsEnd) {
  AuditRing ring(3);
  EXPECT_FALSE(ring.Await(1, absl::Now()));
  std::thread writer([&] { ring.Record(Of(AuditEvent::kDenied, "a")); });
  EXPECT_TRUE(ring.Await(1, absl::InfiniteFuture()));
  writer.join();
  std::thread ender([&] { ring.EndWaits(); });
  EXPECT_FALSE(ring.Await(2, absl::InfiniteFuture()));
  ender.join();
  EXPECT_FALSE(ring.Await(2, absl::InfiniteFuture()));
}

TEST(AuditRingTest, ManyWritersGetANumberEach) {
  AuditRing ring(4000);
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) ring.Record(Of(AuditEvent::kDenied, "a"));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const AuditRing::Batch batch = ring.Read(1, 10'000);
  ASSERT_EQ(batch.records.size(), 4000u);
  for (size_t i = 0; i < 4000; ++i) ASSERT_EQ(batch.records[i].number, i + 1);
}

TEST(AuditFilterTest, OfAFloodTheFirstPassAndTheRestIsCounted) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 2});
  for (int i = 0; i < 5; ++i) {
    AuditRecord record = Of(AuditEvent::kGranted, "a", absl::Milliseconds(i));
    record.bytes = 10;
    filter.Record(record);
  }
  EXPECT_THAT(Lines(ring), ElementsAre("granted a", "granted a"));
  EXPECT_EQ(filter.NextFlush(), kStart + absl::Seconds(1));
  filter.Flush(kStart + absl::Milliseconds(999));
  EXPECT_EQ(Lines(ring).size(), 2u);
  filter.Flush(kStart + absl::Seconds(1));
  EXPECT_THAT(Lines(ring), ElementsAre("granted a", "granted a", "suppressed a 3"));
  const AuditRecord left_out = ring.Read(3, 1).records.front();
  EXPECT_EQ(left_out.of, "granted");
  EXPECT_EQ(left_out.bytes, 30u);
  EXPECT_EQ(filter.NextFlush(), absl::InfiniteFuture());
}

TEST(AuditFilterTest, WhatWouldBeLeftOutNeedNotBeMade) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 2});
  const auto leaves_out = [&](absl::string_view tenant, absl::Duration after) {
    return filter.LeavesOut(AuditEvent::kGranted, tenant, 10, kStart + after);
  };
  EXPECT_FALSE(leaves_out("a", {}));
  EXPECT_FALSE(leaves_out("a", {}));  // asking uses up nothing
  for (int i = 0; i < 2; ++i) filter.Record(Of(AuditEvent::kGranted, "a"));
  EXPECT_TRUE(leaves_out("a", absl::Milliseconds(500)));
  EXPECT_TRUE(leaves_out("a", absl::Milliseconds(999)));
  EXPECT_FALSE(leaves_out("b", {}));
  EXPECT_FALSE(filter.LeavesOut(AuditEvent::kReleased, "a", 10, kStart));
  EXPECT_FALSE(leaves_out("a", absl::Seconds(1)));
  filter.Flush(kStart + absl::Seconds(1));
  EXPECT_THAT(Lines(ring), ElementsAre("granted a", "granted a", "suppressed a 2"));
  EXPECT_EQ(ring.Read(3, 1).records.front().bytes, 20u);
}

TEST(AuditFilterTest, TheNextSecondBeginsWithWhatWasLeftOut) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 1});
  for (int i = 0; i < 3; ++i) filter.Record(Of(AuditEvent::kDenied, "a"));
  filter.Record(Of(AuditEvent::kDenied, "a", absl::Seconds(1)));
  EXPECT_THAT(Lines(ring), ElementsAre("denied a", "suppressed a 2", "denied a"));
}

TEST(AuditFilterTest, OneTenantsFloodHidesNothingElse) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 1});
  for (int i = 0; i < 3; ++i) filter.Record(Of(AuditEvent::kDenied, "a"));
  filter.Record(Of(AuditEvent::kDenied, "b"));
  filter.Record(Of(AuditEvent::kGranted, "a"));
  EXPECT_THAT(Lines(ring), ElementsAre("denied a", "denied b", "granted a"));
}

TEST(AuditFilterTest, WhoHasNoTenantIsCountedByUser) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 1});
  for (uid_t uid : {1, 2, 2}) {
    AuditRecord record = Of(AuditEvent::kRefused, "");
    record.uid = uid;
    filter.Record(record);
  }
  filter.Flush(absl::InfiniteFuture());
  const auto records = ring.Read(1, 10).records;
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[2].event, AuditEvent::kSuppressed);
  EXPECT_EQ(records[2].uid, 2u);
  EXPECT_EQ(records[2].count, 1u);
}

TEST(AuditFilterTest, UsersBeyondThoseThatAreToldApartCountAsOne) {
  constexpr uid_t kUsers = 10'000;
  AuditRing ring(kUsers);
  AuditFilter filter(&ring, {.per_second = 1});
  for (uid_t uid = 1; uid <= kUsers; ++uid) {
    AuditRecord record = Of(AuditEvent::kRefused, "");
    record.uid = uid;
    filter.Record(record);
    ASSERT_LE(filter.windows(), 4097u);
  }
  EXPECT_EQ(ring.Read(1, kUsers).records.size(), 4097u);
  filter.Flush(absl::InfiniteFuture());
  EXPECT_EQ(filter.windows(), 0u);
  const auto records = ring.Read(4098, 10).records;
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].event, AuditEvent::kSuppressed);
  EXPECT_EQ(records[0].uid, std::nullopt);
  EXPECT_EQ(records[0].count, kUsers - 4097);
}

TEST(AuditFilterTest, ManyUsersOfTheLastSecondMakeRoomForThoseOfThis) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 1});
  for (uid_t uid = 1; uid <= 5000; ++uid) {
    AuditRecord record = Of(AuditEvent::kRefused, "", absl::Milliseconds(uid / 5));
    record.uid = uid;
    filter.Record(record);
  }
  AuditRecord late = Of(AuditEvent::kRefused, "", absl::Seconds(3));
  late.uid = 7000;
  filter.Record(late);
  EXPECT_EQ(filter.windows(), 1u);
}

TEST(AuditFilterTest, AClockThatIsSetBackMakesRoomAtOnce) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 1});
  const auto refuse = [&](uid_t uid, absl::Duration after) {
    AuditRecord record = Of(AuditEvent::kRefused, "", after);
    record.uid = uid;
    filter.Record(record);
  };
  for (uid_t uid = 1; uid <= 5000; ++uid) refuse(uid, absl::Seconds(10));
  EXPECT_EQ(filter.windows(), 4097u);
  refuse(7000, {});
  EXPECT_EQ(filter.windows(), 1u);
}

TEST(AuditFilterTest, OperatorsAreNeverCutShort) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 1});
  for (int i = 0; i < 3; ++i) filter.Record(Of(AuditEvent::kQuotaSet, "a"));
  AuditRecord unpublished = Of(AuditEvent::kPublicationEnded, "a");
  unpublished.by = {{.uid = 0, .pid = 1}};
  for (int i = 0; i < 3; ++i) filter.Record(unpublished);
  EXPECT_EQ(Lines(ring).size(), 6u);
}

TEST(AuditFilterTest, PassesAllWhereNothingIsToBeLeftOut) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 0});
  for (int i = 0; i < 50; ++i) filter.Record(Of(AuditEvent::kGranted, "a"));
  EXPECT_EQ(Lines(ring).size(), 50u);
  EXPECT_EQ(filter.NextFlush(), absl::InfiniteFuture());
}

TEST(AuditFilterTest, GrantsCanBeLeftOutAltogether) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.grants = false});
  EXPECT_TRUE(filter.LeavesOut(AuditEvent::kGranted, "a", 1, kStart));
  EXPECT_FALSE(filter.LeavesOut(AuditEvent::kDenied, "a", 1, kStart));
  filter.Record(Of(AuditEvent::kGranted, "a"));
  filter.Record(Of(AuditEvent::kReleased, "a"));
  filter.Record(Of(AuditEvent::kDenied, "a"));
  EXPECT_THAT(Lines(ring), ElementsAre("denied a"));
}

// A session moves memory back and forth with cheap calls.
TEST(AuditFilterTest, MovesBetweenMemoriesAreLimitedLikeGrants) {
  for (const AuditEvent event : {AuditEvent::kSuspended, AuditEvent::kResumed, AuditEvent::kDemoted,
                                 AuditEvent::kPromoted}) {
    AuditRing ring(100);
    AuditFilter filter(&ring, {.per_second = 1}), without_grants(&ring, {.grants = false});
    for (int i = 0; i < 3; ++i) filter.Record(Of(event, "a"));
    without_grants.Record(Of(event, "b"));
    EXPECT_THAT(Lines(ring), ElementsAre(absl::StrCat(NameOf(event), " a")));
  }
}

TEST(AuditFilterTest, AClockThatIsSetBackStopsNothing) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 1});
  for (int i = 0; i < 2; ++i) filter.Record(Of(AuditEvent::kDenied, "a"));
  filter.Record(Of(AuditEvent::kDenied, "a", -absl::Hours(1)));
  EXPECT_THAT(Lines(ring), ElementsAre("denied a", "suppressed a 1", "denied a"));
}

TEST(AuditFilterTest, LimitsAllThatClientsCause) {
  size_t of_clients = 0;
  for (const AuditKind& kind : AuditKinds()) {
    AuditRing ring(100);
    AuditFilter filter(&ring, {.per_second = 2});
    const auto left_out = [&] { return filter.LeavesOut(kind.event, "a", 1, kStart); };
    EXPECT_FALSE(left_out()) << kind.name;
    for (int i = 0; i < 3; ++i) {
      filter.Record(Of(kind.event, "a"));
      const bool is_first = i == 0;
      EXPECT_TRUE(!is_first || !left_out()) << kind.name;
    }
    const bool limited = Lines(ring).size() == 2;
    EXPECT_EQ(Lines(ring).size(), limited ? 2u : 3u) << kind.name;
    EXPECT_EQ(left_out(), limited) << kind.name;
    EXPECT_EQ(filter.NextFlush(), limited ? kStart + absl::Seconds(1) : absl::InfiniteFuture());
    of_clients += limited;
  }
  EXPECT_EQ(of_clients, 25u);
}

TEST(AuditFilterTest, WindowThatIsNotFullHasNothingToFlush) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 2});
  filter.Record(Of(AuditEvent::kDenied, "a"));
  EXPECT_EQ(filter.NextFlush(), absl::InfiniteFuture());
}

TEST(AuditFilterTest, WithoutLimitNothingIsLeftOut) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 0});
  for (int i = 0; i < 50; ++i) filter.Record(Of(AuditEvent::kDenied, "a"));
  EXPECT_FALSE(filter.LeavesOut(AuditEvent::kDenied, "a", 1, kStart));
}

TEST(AuditFilterTest, RecordsWithoutTenantAndUserShareAWindow) {
  AuditRing ring(100);
  AuditFilter filter(&ring, {.per_second = 1});
  for (int i = 0; i < 3; ++i) filter.Record(Of(AuditEvent::kRefused, ""));
  EXPECT_EQ(Lines(ring).size(), 1u);
  EXPECT_EQ(filter.windows(), 1u);
}

TEST(AuditKindsTest, AreThoseOfTheirEvents) {
  std::set<absl::string_view> names, ids;
  for (size_t i = 0; i < AuditKinds().size(); ++i) {
    const AuditKind& kind = AuditKinds()[i];
    EXPECT_EQ(kind.event, static_cast<AuditEvent>(i)) << kind.name;
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_TRUE(ids.insert(kind.message_id).second) << kind.name;
    EXPECT_EQ(kind.message_id.size(), 32u) << kind.name;
    for (char c : kind.message_id) {
      EXPECT_TRUE(absl::ascii_isxdigit(static_cast<unsigned char>(c))) << kind.name;
    }
    EXPECT_FALSE(Tell({.event = kind.event}).empty());
  }
  EXPECT_EQ(AuditKinds().size(), static_cast<size_t>(AuditEvent::kMissed) + 1);
}

TEST(AuditKindsTest, CountInEnglish) {
  const AuditRecord record = {
      .event = AuditEvent::kRestored, .count = 2, .sessions = 1, .gone = 0, .publications = 0};
  EXPECT_EQ(Tell(record),
            "restored from the previous daemon: 1 session, 2 segments, 0 publications; 0 processes "
            "ended");
}

// Returns the table of events that docs/reference/audit.md must have.
std::string Table() {
  const auto priority = [](int level) {
    return level == LOG_ERR       ? "err"
           : level == LOG_WARNING ? "warning"
           : level == LOG_NOTICE  ? "notice"
                                  : "info";
  };
  std::string table;
  for (const AuditKind& kind : AuditKinds()) {
    const std::string fields =
        absl::StrJoin(kind.fields, ", ", [](std::string* out, absl::string_view field) {
          if (absl::ConsumeSuffix(&field, "?")) {
            absl::StrAppend(out, "*", field, "*");
          } else {
            absl::StrAppend(out, field);
          }
        });
    absl::StrAppend(&table, "| `", kind.name, "` | ", priority(kind.priority), " | ", kind.meaning,
                    " | ", fields, " | `", kind.message_id, "` |\n");
  }
  return table;
}

TEST(AuditDocument, HasEveryEventWithItsFields) {
  std::stringstream text;
  text << std::ifstream("docs/reference/audit.md").rdbuf();
  const std::string document = text.str();
  EXPECT_NE(document.find("|---|---|---|---|---|\n" + Table() + "\n"), std::string::npos)
      << "docs/reference/audit.md should say:\n"
      << Table();
  // Every field is explained in the table of fields.
  std::set<std::string> fields;
  for (const AuditKind& kind : AuditKinds()) {
    for (absl::string_view field : kind.fields) {
      absl::ConsumeSuffix(&field, "?");
      fields.emplace(field);
    }
  }
  for (const std::string& field : fields) {
    EXPECT_TRUE(document.find("\n| " + field + " |") != std::string::npos ||
                document.find("\n| " + field + ", ") != std::string::npos ||
                document.find(", " + field + " |") != std::string::npos ||
                document.find(", " + field + ", ") != std::string::npos)
        << field;
  }
}

}  // namespace
}  // namespace gpumemd
