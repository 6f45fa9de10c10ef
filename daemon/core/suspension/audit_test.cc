// SPDX-License-Identifier: Apache-2.0
// Audit records of suspensions and resumes.
#include "daemon/core/audit/audit.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/suspension/testing/fixture.h"

namespace gpumemd {
namespace suspension_audit_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SuspensionAuditTest : public SuspensionsFixture {};

class Sink : public AuditSink {
 public:
  void Record(AuditRecord record) override { records.push_back(std::move(record)); }
  bool LeavesOut(AuditEvent, absl::string_view, uint64_t, absl::Time) override { return full; }

  std::vector<AuditRecord> records;
  bool full = false;
};

TEST_F(SuspensionAuditTest, ThatAPublicationIsBackIsRecordedUnlessItHasEnded) {
  const SessionId owner = OpenSession("a"), reader = OpenSession("b");
  Sink sink;
  for (const bool ends : {false, true}) {
    const Operation::Item item = AcquireFilled(owner, kGranule);
    const PublicationId id = Publish(owner, "w", {item.lease}, /*to_any=*/true);
    Release(owner, {item});
    EXPECT_EQ(SuspendPublication(id), kGranule);
    auto back = Ask(reader, {.publication = id});
    ASSERT_TRUE(Granted(back)) << back.status();
    if (ends) ledger.publications().End(id);
    ledger.SetAudit(&sink);
    Complete(**back);
    ledger.SetAudit(nullptr);
    DestroyDoomed();
  }
  ASSERT_THAT(sink.records, SizeIs(1));
  EXPECT_EQ(sink.records[0].event, AuditEvent::kPublicationResumed);
  EXPECT_EQ(sink.records[0].tenant, "b");
  EXPECT_EQ(sink.records[0].owner, "a");
  EXPECT_EQ(sink.records[0].publication, "a/w");
  EXPECT_EQ(sink.records[0].bytes, kGranule);
}

TEST_F(SuspensionAuditTest, AMoveOfTheDaemonIsRecordedThoughItHasFailed) {
  const SessionId session = OpenSession("a"), other = OpenSession("a");
  const Operation::Item item = AcquireFilled(session, kGranule);
  const Operation::Item opened = OpenTicket(other, Share(session, item.lease));
  Suspend(session, {item.lease});
  Release(other, {opened});
  const std::optional<Move> move = ledger.suspensions().BeginLater(/*steps=*/1);
  ASSERT_TRUE(move.has_value());
  Carry({*move}, /*copied=*/false);
  Sink sink;
  ledger.SetAudit(&sink);
  ledger.suspensions().AuditLater(*move, absl::InternalError("no memory"));
  sink.full = true;
  ledger.suspensions().AuditLater(*move, absl::InternalError("no memory"));
  ledger.SetAudit(nullptr);
  ASSERT_THAT(sink.records, SizeIs(1)) << "the second is left out";
  EXPECT_EQ(sink.records[0].event, AuditEvent::kMoved);
  EXPECT_EQ(sink.records[0].device, "GPU-1");
  EXPECT_EQ(sink.records[0].bytes, 0u);
  EXPECT_EQ(sink.records[0].count, 0u);
  EXPECT_EQ(sink.records[0].why, "no memory");
  EXPECT_THAT(sink.records[0].segments, IsEmpty());
}

// Leases come back in parts.
TEST_F(SuspensionAuditTest, AResumeIsRecordedWithoutWhatWasReleasedMeanwhile) {
  const SessionId session = OpenSession("a");
  const Operation::Item gone = AcquireFilled(session, kGranule);
  const Operation::Item scratch = AcquireFilled(session, 2 * kGranule, "GPU-1", /*scratch=*/true);
  Suspend(session, {gone.lease, scratch.lease});
  auto back = AskResume(session, {gone.lease, scratch.lease});
  ASSERT_TRUE(Granted(back)) << back.status();
  FillFrom(**back);
  size_t next = 0;
  EXPECT_FALSE(ledger.operations().Commit(**back, next, /*steps=*/1).value());
  Release(session, {gone});
  ASSERT_TRUE(ledger.segments().Trim("", "", 0).ok());
  DestroyDoomed();
  Sink sink;
  ledger.SetAudit(&sink);
  EXPECT_TRUE(ledger.operations().Commit(**back, next, /*steps=*/1).value());
  ledger.SetAudit(nullptr);
  ASSERT_THAT(sink.records, SizeIs(1));
  EXPECT_EQ(sink.records[0].event, AuditEvent::kResumed);
  EXPECT_EQ(sink.records[0].count, 1u);
  EXPECT_EQ(sink.records[0].bytes, 0u) << "scratch memory comes back without its bytes";
  EXPECT_THAT(sink.records[0].segments, ElementsAre((*back)->items.at(1).segment));
}

TEST_F(SuspensionAuditTest, AResumeInPlaceIsRecordedThoughItsLeaseHasEnded) {
  const SessionId session = OpenSession("a");
  const Operation::Item item = AcquireFilled(session, kGranule);
  OpenTicket(OpenSession("a"), Share(session, item.lease));
  EXPECT_EQ(Suspend(session, {item.lease}), 0u);
  auto back = AskResume(session, {item.lease});
  ASSERT_TRUE(Granted(back)) << back.status();
  Release(session, {item});
  Sink sink;
  ledger.SetAudit(&sink);
  Complete(**back);
  ledger.SetAudit(nullptr);
  ASSERT_THAT(sink.records, SizeIs(1));
  EXPECT_EQ(sink.records[0].event, AuditEvent::kResumed);
  EXPECT_EQ(sink.records[0].device, "GPU-1") << "every record of a resume has a device";
  EXPECT_EQ(sink.records[0].bytes, 0u);
  EXPECT_THAT(sink.records[0].leases, ElementsAre(item.lease));
}

TEST_F(SuspensionAuditTest, ASuspensionIsRecordedWithItsDeviceThoughItsLeasesHaveEnded) {
  const SessionId session = OpenSession("a");
  const Operation::Item item = AcquireFilled(session, kGranule, "GPU-2");
  auto begun = ledger.suspensions().Begin(session, {item.lease}, /*reservation=*/0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  Release(session, {item});
  Carry(*begun, /*copied=*/false);
  Sink sink;
  ledger.SetAudit(&sink);
  ledger.suspensions().Audit(session, {item.lease}, *begun, absl::InternalError("no memory"));
  ledger.SetAudit(nullptr);
  ASSERT_THAT(sink.records, SizeIs(1));
  EXPECT_EQ(sink.records[0].event, AuditEvent::kSuspended);
  EXPECT_EQ(sink.records[0].device, "GPU-2") << "every record of a suspension has a device";
  EXPECT_EQ(sink.records[0].bytes, 0u);
  EXPECT_EQ(sink.records[0].why, "no memory");
}

TEST_F(SuspensionAuditTest, ARecordOfManyMovesCountsAllAndNamesTheFirst) {
  const SessionId session = OpenSession("a");
  std::vector<LeaseId> leases;
  while (leases.size() <= kMaxAuditIds) {
    leases.push_back(AcquireFilled(session, kGranule, "GPU-1", /*scratch=*/true).lease);
  }
  auto begun = ledger.suspensions().Begin(session, leases, /*reservation=*/0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  Carry(*begun);
  Sink sink;
  ledger.SetAudit(&sink);
  ledger.suspensions().Audit(session, leases, *begun, absl::OkStatus());
  ledger.SetAudit(nullptr);
  ASSERT_THAT(sink.records, SizeIs(1));
  EXPECT_EQ(sink.records[0].event, AuditEvent::kSuspended);
  EXPECT_EQ(sink.records[0].count, kMaxAuditIds + 1);
  EXPECT_THAT(sink.records[0].segments, SizeIs(kMaxAuditIds));
  EXPECT_THAT(sink.records[0].leases, SizeIs(kMaxAuditIds));
}

TEST_F(SuspensionAuditTest, AMoveIsAuditedIfItsLeasesHaveNotEnded) {
  const SessionId session = OpenSession("a"), other = OpenSession("a");
  const Operation::Item item = AcquireFilled(session, kGranule);
  const Operation::Item opened = OpenTicket(other, Share(session, item.lease));
  EXPECT_EQ(Suspend(session, {item.lease}), 0u);
  Release(other, {opened});
  const std::optional<Move> move = ledger.suspensions().BeginLater(/*steps=*/64);
  ASSERT_TRUE(move);
  Carry({*move});
  Sink sink;
  ledger.SetAudit(&sink);
  ledger.suspensions().AuditLater(*move, absl::OkStatus());
  ASSERT_EQ(sink.records.size(), 1u);
  EXPECT_EQ(sink.records[0].event, AuditEvent::kMoved);
  EXPECT_EQ(sink.records[0].bytes, kGranule);
  ledger.SetAudit(nullptr);
  Release(session, {item});
  DestroyDoomed();
  ledger.SetAudit(&sink);
  ledger.suspensions().AuditLater(*move, absl::OkStatus());
  ledger.SetAudit(nullptr);
  EXPECT_EQ(sink.records.size(), 1u);
}

}  // namespace suspension_audit_test
}  // namespace gpumemd
