// SPDX-License-Identifier: Apache-2.0
// The life of leases, tickets and segments, and of operations under way.
#include <vector>

#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using LeasesTest = LedgerFixture;
using TicketsTest = LedgerFixture;
using OperationsTest = LedgerFixture;

// --- Leases ----------------------------------------------------------------------------

TEST_F(LeasesTest, AcquireRoundsUpChargesAndNames) {
  const SessionId session = OpenSession("team");
  const Operation operation = Begin(session, kGranule + 1, 2, "GPU-2");
  EXPECT_EQ(operation.device, 1u);
  ASSERT_EQ(operation.items.size(), 2u);
  EXPECT_NE(operation.items[0].lease, operation.items[1].lease);
  EXPECT_NE(operation.items[0].segment, operation.items[1].segment);
  const LeaseView lease = ledger.look().Describe(operation.items[0]);
  EXPECT_EQ(lease.bytes, 2 * kGranule);
  EXPECT_EQ(lease.device_uuid, "GPU-2");
  EXPECT_EQ(lease.tenant, "team");
  EXPECT_FALSE(lease.reused);
  EXPECT_EQ(StateOf(operation.items[0]), SegmentState::kPending);
  EXPECT_EQ(Usage("team", 1).charged, 4 * kGranule);  // before anything is created
  EXPECT_EQ(Usage("team", 1).leased, 0u);
  ASSERT_TRUE(ledger.operations().Commit(operation).ok());
  EXPECT_EQ(Usage("team", 1).leased, 4 * kGranule);
  EXPECT_EQ(ledger.state().charged(1), 4 * kGranule);
  EXPECT_EQ(ledger.state().charged(0), 0u);
}

TEST_F(LeasesTest, RequestWithoutADeviceGoesToTheFirst) {
  EXPECT_EQ(Begin(OpenSession("team"), 1, 1, "").device, 0u);
}

TEST_F(LeasesTest, ReleaseIsAllOrNothing) {
  const SessionId mine = OpenSession("team");
  const SessionId other = OpenSession("team");
  const auto items = Acquire(mine, kGranule, 2);
  const auto foreign = AcquireOne(other, kGranule);
  const LeaseId known = items[0].lease;
  EXPECT_TRUE(absl::IsNotFound(ledger.leases().Release(mine, {known, foreign.lease})));
  EXPECT_TRUE(absl::IsNotFound(ledger.leases().Release(mine, {known, LeaseId{99}})));
  EXPECT_EQ(Usage("team").leased, 3 * kGranule);
  EXPECT_TRUE(ledger.leases().Release(mine, {known, known, items[1].lease}).ok());  // twice is once
  EXPECT_EQ(Usage("team").leased, kGranule);
  EXPECT_TRUE(absl::IsNotFound(ledger.leases().Release(mine, {known})));
  EXPECT_TRUE(absl::IsAborted(ledger.leases().Release(SessionId{99}, {known})));
}

TEST_F(LeasesTest, TrustedReleaseRetainsForReuse) {
  const SessionId session = OpenSession("team");
  const auto item = AcquireOne(session, kGranule);
  Release(session, {item});
  EXPECT_EQ(StateOf(item), SegmentState::kRetained);
  EXPECT_THAT(Segment(item.segment).sessions, IsEmpty());
  EXPECT_THAT(Drain(ledger.effects().doomed), IsEmpty());
  const auto again = AcquireOne(session, kGranule);
  EXPECT_EQ(again.segment, item.segment);
  EXPECT_NE(again.lease, item.lease);
  EXPECT_TRUE(again.reused);
}

TEST_F(LeasesTest, RetainedSegmentIsReusedByTenantDeviceAndSize) {
  const SessionId session = OpenSession("team");
  Release(session, Acquire(session, 2 * kGranule));
  EXPECT_FALSE(AcquireOne(session, kGranule).reused);
  EXPECT_FALSE(AcquireOne(session, 3 * kGranule).reused);
  EXPECT_FALSE(AcquireOne(session, 2 * kGranule, "GPU-2").reused);
  EXPECT_FALSE(AcquireOne(OpenSession("other"), 2 * kGranule).reused);
  EXPECT_TRUE(AcquireOne(OpenSession("team"), 2 * kGranule).reused);
}

// A process that the daemon does not know may still map it.
TEST_F(LeasesTest, SegmentThatWasGivenAwayIsNotReused) {
  const SessionId session = OpenSession("team");
  const auto item = AcquireOne(session, kGranule);
  const auto give_away = [&] {
    return ledger.leases().Share(session, item.lease, TicketScope::kTenant, NewSecret(),
                                 /*given_away=*/true);
  };
  const absl::StatusOr<Secret> ticket = give_away();
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(*give_away(), *ticket) << "given to another process";
  Release(session, {item});
  EXPECT_EQ(StateOf(item), SegmentState::kReleasing);
  EXPECT_FALSE(AcquireOne(session, kGranule).reused);
}

TEST_F(LeasesTest, RetainsNoMoreThanTheBound) {
  ledger.tenants().Configure({{"team", {.max_retained_bytes = 2 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  const auto items = Acquire(session, kGranule, 3);
  Release(session, items);
  EXPECT_EQ(Usage("team").retained, 2 * kGranule);
  EXPECT_THAT(Drain(ledger.effects().doomed), ElementsAre(items[2].segment));
  EXPECT_EQ(Usage("team").charged, 3 * kGranule);  // until the driver has it back
  ledger.Destroyed(items[2].segment);
  EXPECT_EQ(Usage("team").charged, 2 * kGranule);
  EXPECT_EQ(Usage("team").peak, 3 * kGranule);
}

TEST_F(LeasesTest, ReleaseOnExitLingersUntilTheProcessIsGone) {
  ledger.tenants().Configure({{"team", {.release = ReleasePolicy::kOnExit}}}, {});
  const SessionId session = OpenSession("team");
  const SessionId other = OpenSession("team");
  const auto item = AcquireOne(session, kGranule);
  Release(session, {item});
  EXPECT_EQ(StateOf(item), SegmentState::kLingering);
  EXPECT_THAT(Segment(item.segment).sessions, ElementsAre(session));
  EXPECT_FALSE(AcquireOne(other, kGranule).reused);
  ledger.endings().SocketClosed(session);
  EXPECT_EQ(StateOf(item), SegmentState::kLingering);
  ledger.endings().ProcessGone(session);
  EXPECT_EQ(StateOf(item), SegmentState::kRetained);
  EXPECT_TRUE(AcquireOne(other, kGranule).reused);
}

// Both must trust the release, or the segment lingers: the memory's owner, and the releasing
// tenant.
TEST_F(LeasesTest, ReleaseOnExitOfEitherTenantCounts) {
  ledger.tenants().Configure({{"strict", {.release = ReleasePolicy::kOnExit}}, {"easy", {}}}, {});
  const SessionId strict = OpenSession("strict");
  const SessionId easy = OpenSession("easy");
  const auto of_strict = AcquireOne(strict, kGranule);
  const auto of_easy = AcquireOne(easy, kGranule);
  const auto guest = OpenTicket(easy, Share(strict, of_strict.lease, TicketScope::kAny));
  const auto host = OpenTicket(strict, Share(easy, of_easy.lease, TicketScope::kAny));
  Release(easy, {guest});
  EXPECT_THAT(Segment(of_strict.segment).sessions, ElementsAre(strict, easy));
  Release(strict, {host});
  EXPECT_THAT(Segment(of_easy.segment).sessions, ElementsAre(strict, easy));
}

TEST_F(LeasesTest, TwoLeasesOfOneProcessTakeTwoReleases) {
  const SessionId session = OpenSession("team");
  const auto item = AcquireOne(session, kGranule);
  const auto second = OpenTicket(session, Share(session, item.lease));
  EXPECT_EQ(Segment(item.segment).leases, 2u);
  EXPECT_EQ(Usage("team").charged, kGranule);  // shared bytes count once
  const auto view = ledger.look().ListSessions("team");
  EXPECT_EQ(view->at(0).leases, 2u);
  EXPECT_EQ(view->at(0).leased_bytes, kGranule);
  Release(session, {item});
  EXPECT_EQ(StateOf(item), SegmentState::kLeased);
  Release(session, {second});
  EXPECT_EQ(StateOf(item), SegmentState::kRetained);
}

// --- Tickets ---------------------------------------------------------------------------

TEST_F(TicketsTest, OneTicketForEachScope) {
  const SessionId session = OpenSession("team");
  const auto item = AcquireOne(session, kGranule);
  const Secret ticket = Share(session, item.lease, TicketScope::kTenant);
  EXPECT_EQ(Share(session, item.lease, TicketScope::kTenant), ticket);
  const Secret any = Share(session, item.lease, TicketScope::kAny);
  EXPECT_NE(any, ticket);
  EXPECT_EQ(Share(session, item.lease, TicketScope::kAny), any);
  EXPECT_TRUE(absl::IsNotFound(
      ledger.leases().Share(session, LeaseId{99}, TicketScope::kAny, NewSecret()).status()));
  EXPECT_TRUE(
      absl::IsNotFound(ledger.leases()
                           .Share(OpenSession("team"), item.lease, TicketScope::kAny, NewSecret())
                           .status()));
}

TEST_F(TicketsTest, TicketsEndWithTheirLease) {
  const SessionId holder = OpenSession("team");
  const SessionId opener = OpenSession("team");
  const auto item = AcquireOne(holder, kGranule);
  const Secret ticket = Share(holder, item.lease);
  const Secret any = Share(holder, item.lease, TicketScope::kAny);
  const auto opened = OpenTicket(opener, ticket);
  Release(holder, {item});
  EXPECT_TRUE(absl::IsNotFound(ledger.operations().BeginOpen(opener, {ticket}).status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.operations().BeginOpen(opener, {any}).status()));
  EXPECT_EQ(StateOf(item), SegmentState::kLeased);  // the opener's lease is independent
  const Secret further = Share(opener, opened.lease);
  ledger.endings().SocketClosed(opener);
  EXPECT_TRUE(absl::IsNotFound(ledger.operations().BeginOpen(holder, {further}).status()));
}

TEST_F(TicketsTest, ScopeOfATicket) {
  const SessionId owner = OpenSession("owner");
  const SessionId guest = OpenSession("guest");
  const auto item = AcquireOne(owner, kGranule);
  const Secret inside = Share(owner, item.lease, TicketScope::kTenant);
  const Secret any = Share(owner, item.lease, TicketScope::kAny);
  EXPECT_TRUE(absl::IsPermissionDenied(ledger.operations().BeginOpen(guest, {inside}).status()));
  // All or nothing.
  EXPECT_TRUE(
      absl::IsPermissionDenied(ledger.operations().BeginOpen(guest, {any, inside}).status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.operations().BeginOpen(guest, {any, NewSecret()}).status()));
  EXPECT_THAT(Segment(item.segment).sessions, ElementsAre(owner));
  const auto opened = OpenTicket(guest, any);
  EXPECT_EQ(Usage("owner").leased, kGranule);  // the owner is charged
  EXPECT_EQ(Usage("guest").charged, 0u);
  // A guest's ticket with tenant scope is for the owner's sessions, not for the guest's.
  const Secret guests = Share(guest, opened.lease, TicketScope::kTenant);
  EXPECT_TRUE(absl::IsPermissionDenied(ledger.operations().BeginOpen(guest, {guests}).status()));
  OpenTicket(owner, guests);
}

TEST_F(TicketsTest, SegmentOutlivesItsOwnersSessionWhileOpenElsewhere) {
  const SessionId owner = OpenSession("owner");
  const SessionId guest = OpenSession("guest");
  const auto item = AcquireOne(owner, kGranule);
  const auto opened = OpenTicket(guest, Share(owner, item.lease, TicketScope::kAny));
  ledger.endings().ProcessGone(owner);
  EXPECT_EQ(StateOf(item), SegmentState::kLeased);
  EXPECT_EQ(Usage("owner").charged, kGranule);  // still the owner's, for life
  Release(guest, {opened});
  EXPECT_THAT(DestroyDoomed(), ElementsAre(item.segment));  // no live session could reuse it
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetTenant("owner").status()));
}

// --- Operations under way --------------------------------------------------------------

TEST_F(OperationsTest, AbortOfAnAcquireLeavesNothing) {
  const SessionId session = OpenSession("team");
  const auto kept = AcquireOne(session, kGranule);
  Release(session, {kept});
  const Operation operation = Begin(session, kGranule, 2);
  ledger.operations().Abort(operation, /*handed_over=*/false);
  EXPECT_THAT(DestroyDoomed(), ElementsAre(operation.items[1].segment));  // it never existed
  EXPECT_EQ(StateOf(kept), SegmentState::kRetained);
  EXPECT_EQ(Usage("team").charged, kGranule);
}

TEST_F(OperationsTest, AbortAfterHandingOverLingers) {
  const SessionId session = OpenSession("team");
  const Operation operation = Begin(session, kGranule);
  ledger.operations().Abort(operation, /*handed_over=*/true);
  EXPECT_EQ(StateOf(operation.items[0]), SegmentState::kLingering);
  EXPECT_EQ(ledger.look().ListSessions("team")->at(0).leases, 0u);
  ledger.endings().ProcessGone(session);
  EXPECT_THAT(DestroyDoomed(), ElementsAre(operation.items[0].segment));
}

TEST_F(OperationsTest, AnOpeningHoldsTheSegmentThatIsReleasedMeanwhile) {
  const SessionId holder = OpenSession("team");
  const SessionId opener = OpenSession("team");
  const auto item = AcquireOne(holder, kGranule);
  const auto operation = ledger.operations().BeginOpen(opener, {Share(holder, item.lease)});
  ASSERT_TRUE(operation.ok());
  Release(holder, {item});
  EXPECT_EQ(StateOf(item), SegmentState::kPending);
  EXPECT_FALSE(AcquireOne(holder, kGranule).reused);
  ASSERT_TRUE(ledger.operations().Commit(*operation).ok());
  EXPECT_EQ(StateOf(item), SegmentState::kLeased);
  EXPECT_THAT(Segment(item.segment).sessions, ElementsAre(opener));
}

TEST_F(OperationsTest, CommitAfterTheSessionEnded) {
  const SessionId session = OpenSession("team");
  const SessionId other = OpenSession("team");
  const Operation operation = Begin(session, kGranule);
  ledger.endings().SocketClosed(session);
  EXPECT_THAT(Drain(ledger.effects().forgotten), IsEmpty());  // its operation keeps it
  EXPECT_TRUE(absl::IsAborted(ledger.operations().Commit(operation)));
  EXPECT_EQ(StateOf(operation.items[0]), SegmentState::kLingering);  // process may have it
  ledger.endings().ProcessGone(session);
  EXPECT_THAT(Drain(ledger.effects().forgotten), ElementsAre(session));
  EXPECT_EQ(StateOf(operation.items[0]), SegmentState::kRetained);
  EXPECT_TRUE(AcquireOne(other, kGranule).reused);
}

TEST_F(OperationsTest, CommitAfterTheProcessIsGone) {
  const SessionId session = OpenSession("team");
  const Operation operation = Begin(session, kGranule);
  ledger.endings().ProcessGone(session);
  EXPECT_EQ(StateOf(operation.items[0]), SegmentState::kPending);  // still being created
  EXPECT_THAT(Drain(ledger.effects().doomed), IsEmpty());
  EXPECT_TRUE(absl::IsAborted(ledger.operations().Commit(operation)));
  EXPECT_THAT(DestroyDoomed(), ElementsAre(operation.items[0].segment));
  EXPECT_THAT(Drain(ledger.effects().forgotten), ElementsAre(session));
  EXPECT_EQ(ledger.state().tenants.size(), 0u);
}

}  // namespace
}  // namespace gpumemd
