// SPDX-License-Identifier: Apache-2.0
// Suspensions at their limits: counts, large segments of many leases, and requests that wait while
// the leases move.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/suspension/suspensions.h"
#include "daemon/core/suspension/testing/fixture.h"

namespace gpumemd {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using SuspensionLimitsTest = SuspensionsFixture;

// A move leaves the number of segments as it was. Otherwise a tenant with all of its segments could
// not suspend them, and a tenant that has suspended all could not resume them.
TEST_F(SuspensionLimitsTest, LimitOfSegmentsBlocksNoMove) {
  SetQuota("team", {.max_segments = 1});
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  EXPECT_EQ(Suspend(session, {item.lease}), kGranule);
  DestroyDoomed();
  EXPECT_FALSE(Ask(session, kGranule).ok()) << "it counts while it is suspended";
  Resume(session, {item.lease});
  DestroyDoomed();
  ExpectContents();
}

// While it moves, a segment counts twice.
TEST_F(SuspensionLimitsTest, MoveAboveTheLimitOfSegmentsEndsRetainedOnes) {
  SetQuota("team", {.max_segments = 2});
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  const auto retain = [&] {
    const Operation::Item other = AcquireFilled(session, kGranule);
    ASSERT_TRUE(ledger.leases().Release(session, {other.lease}).ok());
    ASSERT_EQ(StateOf(other), SegmentState::kRetained);
  };
  retain();
  auto begun = ledger.suspensions().Begin(session, {item.lease}, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(ledger.CheckInvariants(), absl::OkStatus());
  Carry(*begun);
  DestroyDoomed();
  retain();
  auto resumed = AskResume(session, {item.lease});
  ASSERT_TRUE(Granted(resumed)) << resumed.status();
  EXPECT_EQ(ledger.CheckInvariants(), absl::OkStatus());
  ledger.operations().Abort(**resumed, /*handed_over=*/false);
}

// The mutex is held while the leases of a segment move.
TEST_F(SuspensionLimitsTest, SegmentWithTooManyLeasesStays) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  const Secret ticket = Share(session, item.lease);
  std::vector<LeaseId> leases = {item.lease};
  while (leases.size() <= kMaxLeasesMoved) leases.push_back(OpenTicket(session, ticket).lease);
  const LeaseId last = leases.back();
  leases.pop_back();
  EXPECT_EQ(Suspend(session, leases), 0u);
  auto begun = ledger.suspensions().Begin(session, {last}, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_THAT(begun->moves, IsEmpty());
  EXPECT_EQ(begun->resident_bytes, kGranule);
  ASSERT_TRUE(ledger.leases().Release(session, {last}).ok());
  EXPECT_EQ(Suspend(session, leases), kGranule);
}

TEST_F(SuspensionLimitsTest, SegmentWithTooManySuspendedLeasesMovesOnceSomeHaveEnded) {
  const SessionId first = OpenSession("team"), second = OpenSession("team");
  const Operation::Item item = AcquireFilled(first, kGranule);
  const Secret ticket = Share(first, item.lease);
  std::vector<LeaseId> leases = {item.lease};
  while (leases.size() < kMaxLeasesMoved) leases.push_back(OpenTicket(first, ticket).lease);
  const Operation::Item last = OpenTicket(second, ticket), mapped = OpenTicket(second, ticket);
  EXPECT_EQ(Suspend(first, leases), 0u);
  EXPECT_EQ(Suspend(second, {last.lease}), 0u);
  Release(second, {mapped});
  EXPECT_EQ(MoveLater(), 0u);
  const SegmentView view = Segment(item.segment);
  EXPECT_EQ(view.suspended, kMaxLeasesMoved + 1);
  EXPECT_EQ(view.sessions, std::vector<SessionId>{first}) << "lists leave out later leases";
  Release(second, {last});
  EXPECT_EQ(MoveLater(), kGranule);
}

TEST_F(SuspensionLimitsTest, LeasesMoveInParts) {
  const SessionId session = OpenSession("team");
  std::vector<LeaseId> firsts;
  for (int i = 0; i < 3; ++i) {
    const Operation::Item item = AcquireFilled(session, kGranule);
    const Secret ticket = Share(session, item.lease);
    std::vector<LeaseId> leases = {item.lease};
    while (leases.size() < kLeasesAtOnce) leases.push_back(OpenTicket(session, ticket).lease);
    EXPECT_EQ(Suspend(session, leases), kGranule);
    firsts.push_back(item.lease);
  }
  DestroyDoomed();
  auto operation = AskResume(session, firsts);
  ASSERT_TRUE(Granted(operation)) << operation.status();
  FillFrom(**operation);
  size_t next = 0, parts = 1;
  for (; true; ++parts) {
    auto done = ledger.operations().Commit(**operation, next, kLeasesAtOnce);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    if (*done) break;
  }
  EXPECT_GE(parts, 3u);
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), 0u);
  ExpectContents();
}

// A request that waits was checked for the bytes that were in the tier when it came.
TEST_F(SuspensionLimitsTest, WaiterBeginsAnewWhenItsLeasesMove) {
  const SessionId first = OpenSession("team");
  const SessionId second = OpenSession("team");
  const Operation::Item own = AcquireFilled(first, kGranule);
  const Operation::Item shared = AcquireFilled(first, kGranule);
  const Operation::Item opened = OpenTicket(second, Share(first, shared.lease));
  expected[opened.lease] = expected[shared.lease];
  EXPECT_EQ(Suspend(first, {own.lease, shared.lease}), kGranule);
  DestroyDoomed();
  const SessionId other = OpenSession("other");
  AcquireOne(other, kCapacity - kGranule);
  auto admission =
      ledger.admission().BeginAcquire(first, {.waits = true, .resumes = {own.lease, shared.lease}});
  ASSERT_TRUE(admission.ok() && admission->waiter) << admission.status();
  EXPECT_EQ(Suspend(second, {opened.lease}), kGranule);
  DestroyDoomed();
  const std::vector<AdmissionControl::Admitted> admitted = ledger.admission().AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(admitted[0].operation.status())) << "it needs more than it asked";
  EXPECT_LE(ledger.state().charged(0), kCapacity);
  // And anew.
  ExpectDenial(AskResume(first, {own.lease, shared.lease}).status(), Denial::Cause::kCapacity,
               "team", "GPU-1", 2 * kGranule, kCapacity - kGranule, kCapacity);
}

TEST_F(SuspensionLimitsTest, MemoryPastTheBrokerDeniesAResume) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  const Operation::Item stays = AcquireFilled(session, kGranule);
  const Operation::Item opened = OpenTicket(OpenSession("team"), Share(session, stays.lease));
  expected[opened.lease] = expected[stays.lease];
  Suspend(session, {item.lease, stays.lease});
  DestroyDoomed();
  ledger.SetUnbrokered(
      {{.session = session, .device_uuid = "GPU-1", .bytes = kGranule, .denies = true}});
  EXPECT_TRUE(absl::IsResourceExhausted(AskResume(session, {item.lease}).status()));
  Resume(session, {stays.lease});  // takes no memory
  ledger.SetUnbrokered({});
  Resume(session, {item.lease});
  DestroyDoomed();
  ExpectContents();
}

TEST_F(SuspensionLimitsTest, DrainingRefusesNoResume) {
  const SessionId session = OpenSession("team"), full = OpenSession("full");
  const Operation::Item item = AcquireFilled(session, kGranule);
  const Operation::Item waits = AcquireFilled(session, kGranule);
  Suspend(session, {item.lease, waits.lease});
  DestroyDoomed();
  ledger.SetDraining(true);
  EXPECT_TRUE(absl::IsUnavailable(Ask(session, {.bytes = kGranule}).status()));
  Resume(session, {item.lease});
  ledger.SetDraining(false);
  const Operation::Item all = AcquireFilled(full, kCapacity - kGranule);
  const auto waiter =
      ledger.admission().BeginAcquire(session, {.waits = true, .resumes = {waits.lease}});
  ASSERT_TRUE(waiter.ok() && waiter->waiter.has_value()) << waiter.status();
  ledger.SetDraining(true);
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  EXPECT_TRUE(ledger.leases().Release(full, {all.lease}).ok());
  DestroyDoomed();
  const auto admitted = ledger.admission().AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  ASSERT_TRUE(admitted[0].operation.ok()) << admitted[0].operation.status();
  FillFrom(*admitted[0].operation);
  EXPECT_TRUE(ledger.operations().Commit(*admitted[0].operation).ok());
  ExpectContents();
}

TEST_F(SuspensionLimitsTest, TheEndOfTheDaemonRefusesResumes) {
  const SessionId session = OpenSession("team"), full = OpenSession("full");
  const Operation::Item item = AcquireFilled(session, kGranule);
  Suspend(session, {item.lease});
  DestroyDoomed();
  AcquireFilled(full, kCapacity);
  const auto waiter =
      ledger.admission().BeginAcquire(session, {.waits = true, .resumes = {item.lease}});
  ASSERT_TRUE(waiter.ok()) << waiter.status();
  ledger.Close();
  const auto admitted = ledger.admission().AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(admitted[0].operation.status()));
  EXPECT_TRUE(absl::IsUnavailable(AskResume(session, {item.lease}).status()));
}

// The memory of the tier counts as kind vmm, which any tenant may open.
TEST_F(SuspensionLimitsTest, SuspendedLeaseIsSharedWithAnyTenant) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  Suspend(session, {item.lease});
  DestroyDoomed();
  const Secret ticket = Share(session, item.lease, TicketScope::kAny);
  const SessionId other = OpenSession("other");
  EXPECT_EQ(ledger.operations().BeginOpen(other, {ticket}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Resume(session, {item.lease});
  OpenTicket(other, ticket);
}

TEST_F(SuspensionLimitsTest, ListsShowWhatIsSuspended) {
  const SessionId first = OpenSession("team");
  const SessionId second = OpenSession("team");
  const Operation::Item own = AcquireFilled(first, 2 * kGranule, "GPU-2");
  const Operation::Item shared = AcquireFilled(first, kGranule, "GPU-2");
  OpenTicket(second, Share(first, shared.lease));
  Suspend(first, {own.lease, shared.lease});
  DestroyDoomed();
  const auto session = [&] { return ledger.look().ListSessions("")->at(0); };
  EXPECT_EQ(session().leased_bytes, 3 * kGranule);
  EXPECT_EQ(session().tier_bytes, 2 * kGranule);
  const SegmentView moved = Segment(SegmentOf(own.lease));
  EXPECT_EQ(moved.kind, Kind::kTier);
  EXPECT_EQ(moved.home_uuid, "GPU-2");
  EXPECT_EQ(moved.suspended, 1u);
  EXPECT_EQ(moved.sessions, std::vector<SessionId>{first});
  const SegmentView stays = Segment(shared.segment);
  EXPECT_EQ(stays.home_uuid, "");
  EXPECT_EQ(stays.suspended, 1u);
  EXPECT_EQ(stays.sessions, (std::vector<SessionId>{first, second}));
  for (const LeaseHolderView& lease : ledger.look().ListHolders(std::nullopt).leases) {
    EXPECT_EQ(lease.suspended, lease.session == first);
  }
  Resume(first, {own.lease});
  DestroyDoomed();
  EXPECT_EQ(session().tier_bytes, 0u);
}

// Reservations for some leases, used for others.
TEST_F(SuspensionLimitsTest, ReservationForOtherLeasesIsGivenBack) {
  const SessionId session = OpenSession("team");
  std::vector<LeaseId> leases;
  for (int i = 0; i < 4; ++i) leases.push_back(AcquireFilled(session, kGranule).lease);
  auto reserved = ledger.suspensions().Prepare(session, {leases[0], leases[2]});
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  auto begun = ledger.suspensions().Begin(session, {leases[1], leases[2], leases[3]}, reserved->id);
  ASSERT_TRUE(begun.ok()) << begun.status();
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), 3 * kGranule);
  Carry(*begun);
  DestroyDoomed();
  ExpectContents();
}

TEST_F(SuspensionLimitsTest, ReservationThatWasReplacedIsNotUsed) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  const auto replaced = ledger.suspensions().Prepare(session, {item.lease});
  const auto reserved = ledger.suspensions().Prepare(session, {item.lease});
  ASSERT_TRUE(replaced.ok() && reserved.ok());
  EXPECT_EQ(InTier("team"), kGranule);
  const auto begun = ledger.suspensions().Begin(session, {item.lease}, replaced->id);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(InTier("team"), 2 * kGranule) << "other room";
  ledger.suspensions().Cancel(session, reserved->id);
  EXPECT_EQ(InTier("team"), kGranule);
  Carry(*begun);
  DestroyDoomed();
  ExpectContents();
  EXPECT_EQ(ledger.suspensions().Begin(SessionId{99}, {item.lease}, reserved->id).status().code(),
            absl::StatusCode::kAborted);
}

// What an operator reads after a restart.
TEST_F(SuspensionLimitsTest, ContentsThatAreLostWithTheirDaemonAreTold) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  Suspend(session, {item.lease});
  DestroyDoomed();
  const SegmentId segment = SegmentOf(item.lease);
  lost_with_daemon = {segment};
  const Restored restored = Restart();
  ASSERT_THAT(restored.lost, SizeIs(1));
  EXPECT_EQ(restored.lost[0].segment, segment);
  EXPECT_EQ(restored.lost[0].kind, Kind::kTier);
  EXPECT_EQ(restored.lost[0].sessions, std::vector<SessionId>{session});
  EXPECT_TRUE(restored.lost[0].suspended);
  EXPECT_EQ(ledger.state().charged(kTierIndex), 0u);
}

TEST_F(SuspensionLimitsTest, AResumeThatWaitsClaimsItsTenantsLimit) {
  SetQuota("team", {.limit_bytes = 4 * kGranule});
  const SessionId session = OpenSession("team"), other = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, 3 * kGranule);
  Suspend(session, {item.lease});
  DestroyDoomed();
  AcquireFilled(other, 2 * kGranule);
  const auto waiter =
      ledger.admission().BeginAcquire(session, {.waits = true, .resumes = {item.lease}});
  ASSERT_TRUE(waiter.ok() && waiter->waiter) << waiter.status();
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(other, kGranule).status()))
      << "a later request takes what the resume waits for";
  EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
}

// Of a publication's memory, the session that attaches waits, and the publisher's tenant is
// charged.
TEST_F(SuspensionLimitsTest, AnAttachThatWaitsCountsForItsOwnTenant) {
  SetQuota("other", {.max_waiting = 1});
  const SessionId owner = OpenSession("team"), session = OpenSession("other");
  const Operation::Item item = AcquireFilled(owner, kGranule);
  const PublicationId weights = Publish(owner, "weights", {item.lease}, /*to_any=*/true);
  ASSERT_TRUE(ledger.leases().Release(owner, {item.lease}).ok());
  EXPECT_EQ(SuspendPublication(weights), kGranule);
  DestroyDoomed();
  AcquireOne(OpenSession("full"), kCapacity);
  const AcquireSpec spec = {.waits = true, .publication = weights};
  const auto first = ledger.admission().BeginAcquire(session, spec);
  EXPECT_TRUE(first.ok() && first->waiter) << first.status();
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.admission().BeginAcquire(session, spec).status()));
  ledger.endings().SocketClosed(session);
  EXPECT_TRUE(absl::IsAborted(ledger.admission().BeginAcquire(session, spec).status()))
      << "it has ended";
}

// A client that has resumed memory in place maps it once, whatever its former daemon was told.
TEST_F(SuspensionLimitsTest, AResumeThatTheDaemonForgotLeavesNoTrace) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  auto begun = ledger.suspensions().Begin(session, {item.lease}, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  Carry(*begun, /*copied=*/false);
  auto operation = AskResume(session, {item.lease});
  ASSERT_TRUE(Granted(operation)) << operation.status();
  Restart();
  ASSERT_TRUE(ledger.reconciliation().Reconcile(session, {item.lease}, {}).ok());
  Resume(session, {item.lease});
  EXPECT_EQ(Suspend(session, {item.lease}), kGranule) << "it counts as mapped by others";
  ExpectContents();
}

TEST_F(SuspensionLimitsTest, RevocableAndLostMemoryIsNotSuspended) {
  const SessionId borrower = OpenSession("team"), session = OpenSession("team");
  auto lent = Ask(borrower, {.device_uuid = "GPU-1", .bytes = kGranule, .revocable = true});
  ASSERT_TRUE(Granted(lent)) << lent.status();
  Finish(**lent);
  EXPECT_EQ(ledger.suspensions().Prepare(borrower, {(*lent)->items[0].lease}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const Operation::Item item = AcquireFilled(session, kGranule);
  lost_with_daemon = {item.segment};
  Restart();
  EXPECT_EQ(ledger.suspensions().Prepare(session, {item.lease}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(SuspensionLimitsTest, AProcessWithRevocableLeasesResumesNone) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  Suspend(session, {item.lease});
  DestroyDoomed();
  auto lent = Ask(session, {.device_uuid = "GPU-1", .bytes = kGranule, .revocable = true});
  ASSERT_TRUE(Granted(lent)) << lent.status();
  Finish(**lent);
  EXPECT_EQ(AskResume(session, {item.lease}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Release(session, (*lent)->items);
  Resume(session, {item.lease});
  DestroyDoomed();
  ExpectContents();
}

}  // namespace
}  // namespace gpumemd
