// SPDX-License-Identifier: Apache-2.0
// What the inspector says of sessions and segments that have ended, and of lists that are read in
// parts. Audit records of many leases.
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/audit/audit.h"
#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace inspector_test {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr SessionId kNone{99};

using InspectorTest = LedgerFixture;

TEST_F(InspectorTest, OfAnUnknownSessionThereIsNothing) {
  const Inspector look = ledger.look();
  EXPECT_EQ(look.TenantOf(kNone).status().code(), StatusCode::kAborted);
  EXPECT_EQ(look.LeaseCountOf(kNone), 0u);
  EXPECT_THAT(look.LostLeases(kNone), IsEmpty());
  EXPECT_THAT(look.RevokedLeases(kNone).leases, IsEmpty());
  EXPECT_EQ(look.ListAttachable(kNone, "").status().code(), StatusCode::kAborted);
  EXPECT_EQ(look.ListPublications("unknown").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(look.GetPublication(PublicationId{1}).status().code(), StatusCode::kNotFound);
}

// They may end between the parts of a list.
TEST_F(InspectorTest, EntriesThatHaveEndedAreLeftOut) {
  const SessionId session = OpenSession("a");
  const Operation::Item item = AcquireOne(session, kGranule);
  std::vector<SessionView> sessions;
  ledger.look().View(std::vector<SessionId>{kNone, session}, "", sessions);
  EXPECT_THAT(sessions, SizeIs(1));
  std::vector<SegmentView> segments;
  ledger.look().View(std::vector<SegmentId>{SegmentId{99}, item.segment}, "", "", segments);
  EXPECT_THAT(segments, SizeIs(1));
  std::vector<LeaseHolderView> holders;
  EXPECT_EQ(ledger.look().View(kNone, std::nullopt, LeaseId{}, 10, holders), std::nullopt);
  EXPECT_THAT(holders, IsEmpty());
}

TEST_F(InspectorTest, LostLeasesAreReadInParts) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 5);
  ledger.segments().MarkLost({items[1].segment, items[4].segment});
  std::vector<LeaseId> lost;
  int parts = 0;
  for (std::optional<LeaseId> next = LeaseId{}; next; ++parts) {
    next = ledger.look().LostLeases(session, *next, 2, lost);
  }
  EXPECT_EQ(parts, 3);
  EXPECT_THAT(lost, ElementsAre(items[1].lease, items[4].lease));
  EXPECT_THAT(ledger.look().LostLeases(session), ElementsAre(items[1].lease, items[4].lease));
}

TEST_F(InspectorTest, RevokedLeasesAreReadInParts) {
  SetQuota("high", {.priority = 1});
  const SessionId low = OpenSession("low"), high = OpenSession("high");
  auto held =
      Ask(low, {.device_uuid = "GPU-1", .bytes = kCapacity / 4, .count = 4, .revocable = true});
  ASSERT_TRUE(Granted(held)) << held.status();
  Finish(**held);
  ASSERT_TRUE(ledger.admission()
                  .BeginAcquire(high, {.device_uuid = "GPU-1", .bytes = kCapacity / 4, .count = 3})
                  .ok());
  Inspector::Revoked revoked;
  int parts = 0;
  for (std::optional<LeaseId> next = LeaseId{}; next; ++parts) {
    next = ledger.look().RevokedLeases(low, *next, 3, revoked);
  }
  EXPECT_EQ(parts, 2);
  EXPECT_THAT(revoked.leases, SizeIs(3));
  EXPECT_THAT(ledger.look().RevokedLeases(high).leases, IsEmpty());
  EXPECT_THAT(ledger.look().RevokedLeases(kNone).leases, IsEmpty());
}

TEST_F(InspectorTest, LeasesOfAnEndedSessionAreNotReleased) {
  const SessionId session = OpenSession("a");
  const Operation::Item item = AcquireOne(session, kGranule);
  EXPECT_EQ(ledger.leases().Check(session, {item.lease}), absl::OkStatus());
  EXPECT_EQ(ledger.leases().Check(kNone, {item.lease}).code(), StatusCode::kAborted);
  ledger.endings().SocketClosed(session);
  EXPECT_EQ(ledger.leases().Check(session, {item.lease}).code(), StatusCode::kAborted);
}

// --- The audit

class Sink : public AuditSink {
 public:
  void Record(AuditRecord record) override { records.push_back(std::move(record)); }
  std::vector<AuditRecord> records;
};

TEST_F(InspectorTest, ARecordOfManyLeasesCountsAllAndNamesTheFirst) {
  const SessionId session = OpenSession("a");
  std::vector<Operation::Item> items = Acquire(session, kGranule, kMaxSegmentsPerCall);
  items.push_back(AcquireOne(session, kGranule));
  Sink sink;
  ledger.SetAudit(&sink);
  Release(session, items);
  ledger.SetAudit(nullptr);
  ASSERT_THAT(sink.records, SizeIs(1));
  EXPECT_EQ(sink.records[0].event, AuditEvent::kReleased);
  EXPECT_EQ(sink.records[0].count, kMaxAuditIds + 1);
  EXPECT_EQ(sink.records[0].bytes, (kMaxAuditIds + 1) * kGranule);
  EXPECT_THAT(sink.records[0].leases, SizeIs(kMaxAuditIds));
  EXPECT_THAT(sink.records[0].segments, SizeIs(kMaxAuditIds));
}

// Leases become live in parts.
TEST_F(InspectorTest, ALeaseThatIsReleasedDuringItsRequestIsNotRecordedAsGranted) {
  const SessionId session = OpenSession("a");
  const Operation operation = Begin(session, kGranule, 2);
  Make(operation);
  size_t next = 0;
  EXPECT_FALSE(ledger.operations().Commit(operation, next, /*steps=*/1).value());
  Release(session, {operation.items[0]});
  ASSERT_TRUE(ledger.segments().Trim("", "", 0).ok());
  EXPECT_THAT(DestroyDoomed(), ElementsAre(operation.items[0].segment));
  Sink sink;
  ledger.SetAudit(&sink);
  EXPECT_TRUE(ledger.operations().Commit(operation, next, /*steps=*/1).value());
  ledger.SetAudit(nullptr);
  ASSERT_THAT(sink.records, SizeIs(1));
  EXPECT_EQ(sink.records[0].event, AuditEvent::kGranted);
  EXPECT_EQ(sink.records[0].count, 1u);
  EXPECT_THAT(sink.records[0].leases, ElementsAre(operation.items[1].lease));
}

}  // namespace inspector_test
}  // namespace gpumemd
