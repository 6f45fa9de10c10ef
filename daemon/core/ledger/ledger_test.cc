// The life of sessions, leases, tickets and segments, one promise a test.
#include "daemon/core/ledger/ledger.h"

#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class LedgerTest : public LedgerFixture {
 protected:
  SegmentView Segment(SegmentId id) {
    const auto views = ledger.look().ListSegments("", "");
    for (const SegmentView& view : *views) {
      if (view.id == id) return view;
    }
    ADD_FAILURE() << "no segment " << ToInt(id);
    return {};
  }
  SegmentState StateOf(const Operation::Item& item) { return Segment(item.segment).state; }
};

// --- Leases ----------------------------------------------------------------------------

TEST_F(LedgerTest, AcquireRoundsUpChargesAndNames) {
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
  ASSERT_TRUE(ledger.Commit(operation).ok());
  EXPECT_EQ(Usage("team", 1).leased, 4 * kGranule);
  EXPECT_EQ(ledger.state().charged(1), 4 * kGranule);
  EXPECT_EQ(ledger.state().charged(0), 0u);
}

TEST_F(LedgerTest, WithoutADeviceItIsTheFirst) {
  EXPECT_EQ(Begin(OpenSession("team"), 1, 1, "").device, 0u);
}

TEST_F(LedgerTest, ReleaseIsAllOrNothing) {
  const SessionId mine = OpenSession("team");
  const SessionId other = OpenSession("team");
  const auto items = Acquire(mine, kGranule, 2);
  const auto foreign = AcquireOne(other, kGranule);
  const LeaseId known = items[0].lease;
  EXPECT_TRUE(absl::IsNotFound(ledger.Release(mine, {known, foreign.lease})));
  EXPECT_TRUE(absl::IsNotFound(ledger.Release(mine, {known, LeaseId{99}})));
  EXPECT_EQ(Usage("team").leased, 3 * kGranule);
  EXPECT_TRUE(ledger.Release(mine, {known, known, items[1].lease}).ok());  // twice is once
  EXPECT_EQ(Usage("team").leased, kGranule);
  EXPECT_TRUE(absl::IsNotFound(ledger.Release(mine, {known})));
  EXPECT_TRUE(absl::IsAborted(ledger.Release(SessionId{99}, {known})));
}

TEST_F(LedgerTest, TrustedReleaseRetainsForReuse) {
  const SessionId session = OpenSession("team");
  const auto item = AcquireOne(session, kGranule);
  Release(session, {item});
  EXPECT_EQ(StateOf(item), SegmentState::kRetained);
  EXPECT_THAT(Segment(item.segment).sessions, IsEmpty());
  EXPECT_THAT(ledger.TakeDoomed(), IsEmpty());
  const auto again = AcquireOne(session, kGranule);
  EXPECT_EQ(again.segment, item.segment);
  EXPECT_NE(again.lease, item.lease);
  EXPECT_TRUE(again.reused);
}

TEST_F(LedgerTest, RetainedIsForTheOwnTenantTheSameDeviceAndSizeOnly) {
  const SessionId session = OpenSession("team");
  Release(session, Acquire(session, 2 * kGranule));
  EXPECT_FALSE(AcquireOne(session, kGranule).reused);
  EXPECT_FALSE(AcquireOne(session, 3 * kGranule).reused);
  EXPECT_FALSE(AcquireOne(session, 2 * kGranule, "GPU-2").reused);
  EXPECT_FALSE(AcquireOne(OpenSession("other"), 2 * kGranule).reused);
  EXPECT_TRUE(AcquireOne(OpenSession("team"), 2 * kGranule).reused);
}

TEST_F(LedgerTest, RetainsNoMoreThanTheBound) {
  ledger.Configure({{"team", {.max_retained_bytes = 2 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  const auto items = Acquire(session, kGranule, 3);
  Release(session, items);
  EXPECT_EQ(Usage("team").retained, 2 * kGranule);
  EXPECT_THAT(ledger.TakeDoomed(), ElementsAre(items[2].segment));
  EXPECT_EQ(Usage("team").charged, 3 * kGranule);  // until the driver has it back
  ledger.Destroyed(items[2].segment);
  EXPECT_EQ(Usage("team").charged, 2 * kGranule);
  EXPECT_EQ(Usage("team").peak, 3 * kGranule);
}

TEST_F(LedgerTest, OnExitLingersUntilTheProcessIsGone) {
  ledger.Configure({{"team", {.release = ReleasePolicy::kOnExit}}}, {});
  const SessionId session = OpenSession("team");
  const SessionId other = OpenSession("team");
  const auto item = AcquireOne(session, kGranule);
  Release(session, {item});
  EXPECT_EQ(StateOf(item), SegmentState::kLingering);
  EXPECT_THAT(Segment(item.segment).sessions, ElementsAre(session));
  EXPECT_FALSE(AcquireOne(other, kGranule).reused);
  ledger.SocketClosed(session);
  EXPECT_EQ(StateOf(item), SegmentState::kLingering);
  ledger.ProcessGone(session);
  EXPECT_EQ(StateOf(item), SegmentState::kRetained);
  EXPECT_TRUE(AcquireOne(other, kGranule).reused);
}

// Both must trust the release, or the segment lingers: the memory's owner, and the releasing
// tenant.
TEST_F(LedgerTest, OnExitOfEitherTenantCounts) {
  ledger.Configure({{"strict", {.release = ReleasePolicy::kOnExit}}, {"easy", {}}}, {});
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

TEST_F(LedgerTest, TwoLeasesOfOneProcessTakeTwoReleases) {
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

TEST_F(LedgerTest, OneTicketForEachScope) {
  const SessionId session = OpenSession("team");
  const auto item = AcquireOne(session, kGranule);
  const Secret ticket = Share(session, item.lease, TicketScope::kTenant);
  EXPECT_EQ(Share(session, item.lease, TicketScope::kTenant), ticket);
  const Secret any = Share(session, item.lease, TicketScope::kAny);
  EXPECT_NE(any, ticket);
  EXPECT_EQ(Share(session, item.lease, TicketScope::kAny), any);
  EXPECT_TRUE(absl::IsNotFound(
      ledger.Share(session, LeaseId{99}, TicketScope::kAny, NewSecret()).status()));
  EXPECT_TRUE(absl::IsNotFound(
      ledger.Share(OpenSession("team"), item.lease, TicketScope::kAny, NewSecret()).status()));
}

TEST_F(LedgerTest, TicketsDieWithTheirLease) {
  const SessionId holder = OpenSession("team");
  const SessionId opener = OpenSession("team");
  const auto item = AcquireOne(holder, kGranule);
  const Secret ticket = Share(holder, item.lease);
  const Secret any = Share(holder, item.lease, TicketScope::kAny);
  const auto opened = OpenTicket(opener, ticket);
  Release(holder, {item});
  EXPECT_TRUE(absl::IsNotFound(ledger.BeginOpen(opener, {ticket}).status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.BeginOpen(opener, {any}).status()));
  EXPECT_EQ(StateOf(item), SegmentState::kLeased);  // the opener's lease is independent
  const Secret further = Share(opener, opened.lease);
  ledger.SocketClosed(opener);
  EXPECT_TRUE(absl::IsNotFound(ledger.BeginOpen(holder, {further}).status()));
}

TEST_F(LedgerTest, ScopeOfATicket) {
  const SessionId owner = OpenSession("owner");
  const SessionId guest = OpenSession("guest");
  const auto item = AcquireOne(owner, kGranule);
  const Secret inside = Share(owner, item.lease, TicketScope::kTenant);
  const Secret any = Share(owner, item.lease, TicketScope::kAny);
  EXPECT_TRUE(absl::IsPermissionDenied(ledger.BeginOpen(guest, {inside}).status()));
  // All or nothing.
  EXPECT_TRUE(absl::IsPermissionDenied(ledger.BeginOpen(guest, {any, inside}).status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.BeginOpen(guest, {any, NewSecret()}).status()));
  EXPECT_THAT(Segment(item.segment).sessions, ElementsAre(owner));
  const auto opened = OpenTicket(guest, any);
  EXPECT_EQ(Usage("owner").leased, kGranule);  // the owner is charged
  EXPECT_EQ(Usage("guest").charged, 0u);
  // A guest's ticket with tenant scope is for the owner's sessions, not for the guest's.
  const Secret guests = Share(guest, opened.lease, TicketScope::kTenant);
  EXPECT_TRUE(absl::IsPermissionDenied(ledger.BeginOpen(guest, {guests}).status()));
  OpenTicket(owner, guests);
}

TEST_F(LedgerTest, AGuestKeepsASegmentWhoseOwnerHasLeft) {
  const SessionId owner = OpenSession("owner");
  const SessionId guest = OpenSession("guest");
  const auto item = AcquireOne(owner, kGranule);
  const auto opened = OpenTicket(guest, Share(owner, item.lease, TicketScope::kAny));
  ledger.ProcessGone(owner);
  EXPECT_EQ(StateOf(item), SegmentState::kLeased);
  EXPECT_EQ(Usage("owner").charged, kGranule);  // still the owner's, for life
  Release(guest, {opened});
  EXPECT_THAT(DestroyDoomed(), ElementsAre(item.segment));  // no live session could reuse it
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetTenant("owner").status()));
}

// --- Operations under way --------------------------------------------------------------

TEST_F(LedgerTest, AbortOfAnAcquireLeavesNothing) {
  const SessionId session = OpenSession("team");
  const auto kept = AcquireOne(session, kGranule);
  Release(session, {kept});
  const Operation operation = Begin(session, kGranule, 2);
  ledger.Abort(operation, /*handed_over=*/false);
  EXPECT_THAT(DestroyDoomed(), ElementsAre(operation.items[1].segment));  // it never existed
  EXPECT_EQ(StateOf(kept), SegmentState::kRetained);
  EXPECT_EQ(Usage("team").charged, kGranule);
}

TEST_F(LedgerTest, AbortAfterHandingOverLingers) {
  const SessionId session = OpenSession("team");
  const Operation operation = Begin(session, kGranule);
  ledger.Abort(operation, /*handed_over=*/true);
  EXPECT_EQ(StateOf(operation.items[0]), SegmentState::kLingering);
  EXPECT_EQ(ledger.look().ListSessions("team")->at(0).leases, 0u);
  ledger.ProcessGone(session);
  EXPECT_THAT(DestroyDoomed(), ElementsAre(operation.items[0].segment));
}

TEST_F(LedgerTest, AnOpeningHoldsTheSegmentThatIsReleasedMeanwhile) {
  const SessionId holder = OpenSession("team");
  const SessionId opener = OpenSession("team");
  const auto item = AcquireOne(holder, kGranule);
  const auto operation = ledger.BeginOpen(opener, {Share(holder, item.lease)});
  ASSERT_TRUE(operation.ok());
  Release(holder, {item});
  EXPECT_EQ(StateOf(item), SegmentState::kPending);
  EXPECT_FALSE(AcquireOne(holder, kGranule).reused);
  ASSERT_TRUE(ledger.Commit(*operation).ok());
  EXPECT_EQ(StateOf(item), SegmentState::kLeased);
  EXPECT_THAT(Segment(item.segment).sessions, ElementsAre(opener));
}

TEST_F(LedgerTest, CommitAfterTheSessionEnded) {
  const SessionId session = OpenSession("team");
  const SessionId other = OpenSession("team");
  const Operation operation = Begin(session, kGranule);
  ledger.SocketClosed(session);
  EXPECT_THAT(ledger.TakeForgotten(), IsEmpty());  // its operation keeps it
  EXPECT_TRUE(absl::IsAborted(ledger.Commit(operation)));
  EXPECT_EQ(StateOf(operation.items[0]), SegmentState::kLingering);  // process may have it
  ledger.ProcessGone(session);
  EXPECT_THAT(ledger.TakeForgotten(), ElementsAre(session));
  EXPECT_EQ(StateOf(operation.items[0]), SegmentState::kRetained);
  EXPECT_TRUE(AcquireOne(other, kGranule).reused);
}

TEST_F(LedgerTest, CommitAfterTheProcessIsGone) {
  const SessionId session = OpenSession("team");
  const Operation operation = Begin(session, kGranule);
  ledger.ProcessGone(session);
  EXPECT_EQ(StateOf(operation.items[0]), SegmentState::kPending);  // still being created
  EXPECT_THAT(ledger.TakeDoomed(), IsEmpty());
  EXPECT_TRUE(absl::IsAborted(ledger.Commit(operation)));
  EXPECT_THAT(DestroyDoomed(), ElementsAre(operation.items[0].segment));
  EXPECT_THAT(ledger.TakeForgotten(), ElementsAre(session));
  EXPECT_EQ(ledger.state().tenants.size(), 0u);
}

// --- Sessions --------------------------------------------------------------------------

TEST_F(LedgerTest, ATokenNamesALiveSession) {
  const Secret token = NewSecret();
  const auto session = ledger.OpenSession("team", {.client_name = "trainer"}, token);
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(*ledger.FindByToken(token), *session);
  EXPECT_EQ(*ledger.look().TenantOf(*session), "team");
  Acquire(*session, kGranule);
  ledger.SocketClosed(*session);
  EXPECT_TRUE(absl::IsNotFound(ledger.FindByToken(token).status()));
  const auto views = ledger.look().ListSessions("");
  ASSERT_EQ(views->size(), 1u);  // its process may still map the segment
  EXPECT_FALSE(views->at(0).live);
  EXPECT_EQ(views->at(0).details.client_name, "trainer");
  EXPECT_TRUE(absl::IsAborted(ledger.BeginCall(*session)));
}

TEST_F(LedgerTest, SocketAndProcessEndInEitherOrder) {
  for (const bool socket_first : {true, false}) {
    const SessionId session = OpenSession("team");
    const auto item = AcquireOne(session, kGranule);
    if (socket_first) {
      ledger.SocketClosed(session);
      EXPECT_EQ(StateOf(item), SegmentState::kLingering);
      EXPECT_EQ(Usage("team").lingering, kGranule);
      EXPECT_THAT(ledger.TakeDoomed(), IsEmpty());
      EXPECT_THAT(ledger.TakeForgotten(), IsEmpty());
    }
    ledger.ProcessGone(session);
    EXPECT_THAT(ledger.TakeForgotten(), ElementsAre(session));
    EXPECT_THAT(DestroyDoomed(), ElementsAre(item.segment));
    ledger.SocketClosed(session);  // without effect
    ledger.ProcessGone(session);
    EXPECT_THAT(ledger.TakeForgotten(), IsEmpty());
    EXPECT_EQ(ledger.state().tenants.size(), 0u);
  }
}

TEST_F(LedgerTest, ASessionThatMapsNothingIsForgottenWithItsSocket) {
  const SessionId session = OpenSession("team");
  Release(session, Acquire(session, kGranule));
  ledger.SocketClosed(session);
  EXPECT_THAT(ledger.TakeForgotten(), ElementsAre(session));
}

TEST_F(LedgerTest, ACallInFlightKeepsItsSession) {
  const SessionId session = OpenSession("team");
  ASSERT_TRUE(ledger.BeginCall(session).ok());
  ledger.ProcessGone(session);
  EXPECT_THAT(ledger.TakeForgotten(), IsEmpty());
  EXPECT_EQ(*ledger.look().TenantOf(session), "team");
  ledger.EndCall(session);
  EXPECT_THAT(ledger.TakeForgotten(), ElementsAre(session));
}

TEST_F(LedgerTest, LingeringSessionsCount) {
  ledger.Configure({{"team", {.max_sessions = 1}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, kGranule);
  ledger.SocketClosed(session);
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.OpenSession("team", {}, NewSecret()).status()));
  EXPECT_EQ(ledger.look().GetTenant("team")->sessions, 1u);
  ledger.ProcessGone(session);
  OpenSession("team");
}

TEST_F(LedgerTest, WithTheLastLiveSessionThePoolGoes) {
  const SessionId first = OpenSession("team");
  const SessionId last = OpenSession("team");
  const auto items = Acquire(first, kGranule, 2);
  Release(first, items);
  ledger.SocketClosed(first);
  EXPECT_EQ(Usage("team").retained, 2 * kGranule);
  ledger.SocketClosed(last);
  EXPECT_THAT(DestroyDoomed(), UnorderedElementsAre(items[0].segment, items[1].segment));
}

// --- Tenants ---------------------------------------------------------------------------

TEST_F(LedgerTest, TenantsMadeByARuleAreForgottenWhenIdle) {
  ledger.Configure({{"configured", {}}}, {.limit_bytes = 4 * kGranule});
  const SessionId session = OpenSession("uid-1000");
  EXPECT_EQ(ledger.look().GetQuota("uid-1000")->limit_bytes, 4 * kGranule);
  EXPECT_FALSE(ledger.look().GetTenant("uid-1000")->configured);
  const auto item = AcquireOne(session, kGranule);
  ledger.ProcessGone(session);
  EXPECT_EQ(ledger.state().tenants.size(), 2u);  // the driver still has its segment
  EXPECT_THAT(DestroyDoomed(), ElementsAre(item.segment));
  EXPECT_EQ(ledger.state().tenants.size(), 1u);
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetQuota("uid-1000").status()));
  EXPECT_TRUE(ledger.look().GetTenant("configured")->configured);
}

TEST_F(LedgerTest, ConfigureTakesEffectAtOnceAndBreaksNoHolder) {
  ledger.Configure({{"team", {}}, {"leaving", {}}}, {});
  const SessionId session = OpenSession("team");
  const SessionId leaving = OpenSession("leaving");
  const auto items = Acquire(session, kGranule, 4);
  ledger.Configure({{"team", {.limit_bytes = kGranule}}, {"new", {}}},
                   {.limit_bytes = 2 * kGranule});
  EXPECT_EQ(Usage("team").leased, 4 * kGranule);
  EXPECT_EQ(Usage("team").limit, kGranule);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, 1).status()));
  EXPECT_TRUE(ledger.look().GetTenant("new")->configured);
  EXPECT_FALSE(ledger.look().GetTenant("leaving")->configured);
  EXPECT_EQ(Usage("leaving").limit, 2 * kGranule);
  ledger.SocketClosed(leaving);
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetTenant("leaving").status()));
}

TEST_F(LedgerTest, QuotasOfTheUnknown) {
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetQuota("team").status()));
  ledger.Configure({{"team", {}}}, {});
  EXPECT_TRUE(absl::IsNotFound(ledger.CheckDevices({.device_limits = {{"GPU-9", 1}}})));
  EXPECT_EQ(*ledger.look().GetQuota("team"), Quota{});
  EXPECT_TRUE(absl::IsNotFound(ledger.look().ListSessions("nobody").status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.look().ListSegments("nobody", "").status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.look().ListSegments("team", "GPU-9").status()));
}

// --- Giving memory back ----------------------------------------------------------------

TEST_F(LedgerTest, TrimKeepsTheYoungest) {
  const SessionId session = OpenSession("team");
  const auto items = Acquire(session, kGranule, 3);
  const auto elsewhere = Acquire(session, kGranule, 1, "GPU-2");
  Release(session, {items[2]});
  Release(session, {items[0], items[1]});
  Release(session, elsewhere);
  const auto first = ledger.Trim("team", "GPU-1", 2 * kGranule);
  EXPECT_THAT(*first, ElementsAre(items[2].segment));
  EXPECT_THAT(*ledger.Trim("", "", 2 * kGranule - 1),
              ElementsAre(items[0].segment));  // a segment is kept whole or not at all
  EXPECT_THAT(*ledger.Trim("", "", 0), ElementsAre(items[1].segment, elsewhere[0].segment));
  EXPECT_EQ(DestroyDoomed().size(), 4u);  // each exactly once
  EXPECT_THAT(ledger.TakeDoomed(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(ledger.Trim("nobody", "", 0).status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.Trim("", "GPU-9", 0).status()));
}

TEST_F(LedgerTest, DrainingAdmitsNothingAndRetainsNothing) {
  const SessionId session = OpenSession("team");
  const auto items = Acquire(session, kGranule, 2);
  const Secret ticket = Share(session, items[0].lease);
  const auto kept = AcquireOne(session, kGranule);
  const Operation under_way = Begin(session, kGranule);
  Release(session, {kept});
  ledger.SetDraining(true);
  EXPECT_THAT(ledger.TakeDoomed(), ElementsAre(kept.segment));
  EXPECT_TRUE(absl::IsUnavailable(ledger.OpenSession("team", {}, NewSecret()).status()));
  EXPECT_TRUE(absl::IsUnavailable(Ask(session, 1).status()));
  EXPECT_TRUE(absl::IsUnavailable(ledger.BeginOpen(session, {ticket}).status()));
  EXPECT_TRUE(ledger.Commit(under_way).ok());  // operations in flight may end
  EXPECT_EQ(Usage("team").leased, 3 * kGranule);
  Release(session, {items[1]});
  EXPECT_THAT(ledger.TakeDoomed(), ElementsAre(items[1].segment));
  ledger.SetDraining(false);
  OpenTicket(session, ticket);
  Release(session, {items[0]});
}

TEST_F(LedgerTest, AgesComeFromTheClock) {
  const SessionId session = OpenSession("team");
  now += absl::Seconds(5);
  const auto item = AcquireOne(session, kGranule);
  now += absl::Seconds(2);
  EXPECT_EQ(ledger.look().ListSessions("team")->at(0).age, absl::Seconds(7));
  EXPECT_EQ(Segment(item.segment).age, absl::Seconds(2));
}

// --- Ends in parts ---------------------------------------------------------------------

TEST_F(LedgerTest, ALargeSessionEndsInParts) {
  const Secret token = NewSecret();
  const SessionId session = ledger.OpenSession("team", {}, token).value();
  const SessionId other = OpenSession("team");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 5);
  ledger.SocketClosed(session, /*steps=*/2);
  // It no longer counts as a session, but what it has not given back yet is charged.
  EXPECT_TRUE(ledger.HasEnding());
  EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  EXPECT_TRUE(absl::IsAborted(ledger.BeginCall(session)));
  EXPECT_TRUE(absl::IsNotFound(ledger.FindByToken(token).status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.Resume(session, {})));
  EXPECT_EQ(ledger.look().ListSessions("team")->at(0).leases, 3u);
  EXPECT_EQ(Usage("team").leased, 3 * kGranule);
  EXPECT_EQ(Usage("team").lingering, 2 * kGranule);
  // Its process ends meanwhile. No segment is given up before the session's leases have ended.
  ledger.ProcessGone(session, /*steps=*/1);
  EXPECT_EQ(Usage("team").leased, 2 * kGranule);
  EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  size_t parts = 0;
  for (; ledger.HasEnding(); ++parts) {
    EXPECT_TRUE(ledger.TakeForgotten().empty());
    ledger.ContinueEnding(/*steps=*/2);
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  }
  EXPECT_EQ(parts, 4u);  // two leases, and five mappings
  EXPECT_EQ(ledger.TakeForgotten(), std::vector<SessionId>{session});
  EXPECT_EQ(Usage("team").retained, 5 * kGranule);
  EXPECT_EQ(ledger.look().Measure().devices[0].reclaimed, 5 * kGranule);
  // The last session of a tenant leaves nothing retained.
  ledger.SocketClosed(other, /*steps=*/2);
  for (; ledger.HasEnding(); ledger.ContinueEnding(/*steps=*/2)) {
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  }
  EXPECT_EQ(DestroyDoomed().size(), 5u);
}

TEST_F(LedgerTest, ReconcileInParts) {
  const SessionId session = OpenSession("team");
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger.BeginReconcile(session)));
  std::vector<LeaseId> kept;
  for (const Operation::Item& item : Acquire(session, kGranule, 7)) kept.push_back(item.lease);
  PeerIdentity peer;
  peer.pid = pids;
  ASSERT_TRUE(ledger.Resume(session, peer).ok());
  ASSERT_TRUE(ledger.BeginReconcile(session).ok());
  EXPECT_TRUE(absl::IsUnavailable(ledger.BeginReconcile(session))) << "one at a time";
  kept.resize(3);
  kept.push_back(LeaseId{99});
  Ledger::Statement statement(kept, {});
  size_t parts = 1;
  for (; !ledger.Reconcile(session, statement, /*steps=*/2).value(); ++parts) {
    EXPECT_EQ(ledger.state().sessions.at(session)->presence, Presence::kReturning);
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  }
  EXPECT_GE(parts, 7u);
  EXPECT_EQ(statement.TakeUnknown(), std::vector<LeaseId>{LeaseId{99}});
  EXPECT_EQ(ledger.state().sessions.at(session)->presence, Presence::kHere);
  EXPECT_EQ(Usage("team").leased, 3 * kGranule);
  ledger.EndCall(session);
  // The answer may be lost; once the session makes another call, it was not.
  EXPECT_TRUE(ledger.BeginReconcile(session).ok());
  ledger.EndCall(session);
  EXPECT_TRUE(ledger.BeginCall(session).ok());
  ledger.EndCall(session);
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger.BeginReconcile(session)));
  // A statement made on one connection does not count for the next.
  ASSERT_TRUE(ledger.Resume(session, peer).ok());
  Ledger::Statement late(kept, {});
  EXPECT_FALSE(ledger.Reconcile(session, late, /*steps=*/1).value());
  ASSERT_TRUE(ledger.Resume(session, peer).ok());
  EXPECT_TRUE(absl::IsUnavailable(ledger.Reconcile(session, late, /*steps=*/1).status()));
}

// The memory of a process that is gone comes back in parts. Its successor waits until all of it is
// back.
TEST_F(LedgerTest, NoRequestIsRefusedWhileASessionEnds) {
  const SessionId dead = OpenSession("team"), next = OpenSession("team");
  const SessionId other = OpenSession("others");
  Acquire(dead, 128 * kGranule, 6);
  const std::vector<Operation::Item> kept = Acquire(other, 256 * kGranule);
  const AcquireSpec fits = {.device_uuid = "GPU-1", .bytes = 768 * kGranule};
  const AcquireSpec too_much = {.device_uuid = "GPU-1", .bytes = 769 * kGranule};
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.BeginAcquire(next, fits).status()));
  ledger.ProcessGone(dead, /*steps=*/2);
  ASSERT_TRUE(ledger.HasEnding());
  const auto first = ledger.BeginAcquire(next, fits);
  ASSERT_TRUE(first.ok() && first->waiter) << first.status();
  const auto second = ledger.BeginAcquire(next, too_much);
  ASSERT_TRUE(second.ok() && second->waiter) << second.status();
  while (ledger.HasEnding()) {
    EXPECT_TRUE(ledger.AdmitWaiting().empty());
    EXPECT_FALSE(ledger.IsBlocked(*first->waiter));
    EXPECT_FALSE(ledger.IsBlocked(*second->waiter));
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    ledger.ContinueEnding(/*steps=*/2);
  }
  // All memory is back now.
  const std::vector<Ledger::Admitted> refused = ledger.AdmitWaiting();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].waiter, *second->waiter);
  ExpectDenial(refused[0].operation.status(), Denial::Cause::kCapacity, "team", "GPU-1",
               769 * kGranule, 256 * kGranule, kCapacity);
  EXPECT_EQ(DestroyDoomed().size(), 6u);
  const std::vector<Ledger::Admitted> granted = ledger.AdmitWaiting();
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].waiter, *first->waiter);
  Finish(*granted[0].operation);
  Release(other, kept);
}

TEST_F(LedgerTest, NothingIsTakenBackWhileASessionEnds) {
  ledger.Configure({{"low", {.priority = -1}}, {"high", {.priority = 1}}}, {});
  const SessionId dead = OpenSession("high"), low = OpenSession("low"), high = OpenSession("high");
  Acquire(dead, 128 * kGranule, 4);
  const auto lent = ledger.BeginAcquire(
      low, {.device_uuid = "GPU-1", .bytes = 512 * kGranule, .revocable = true});
  ASSERT_TRUE(lent.ok() && lent->operation);
  Finish(*lent->operation);
  ledger.ProcessGone(dead, /*steps=*/1);
  const auto enough = ledger.BeginAcquire(high, {.device_uuid = "GPU-1", .bytes = 512 * kGranule});
  ASSERT_TRUE(enough.ok() && enough->waiter) << enough.status();
  while (ledger.HasEnding()) {
    EXPECT_TRUE(ledger.AdmitWaiting().empty());
    ledger.ContinueEnding(/*steps=*/1);
  }
  EXPECT_TRUE(ledger.AdmitWaiting().empty());
  DestroyDoomed();
  const std::vector<Ledger::Admitted> granted = ledger.AdmitWaiting();
  ASSERT_EQ(granted.size(), 1u);
  Finish(*granted[0].operation);
  EXPECT_TRUE(ledger.TakeRevoked().empty());

  // If the memory that comes back is not enough, revocable memory is taken back in the end.
  const SessionId gone = OpenSession("high"), last = OpenSession("high");
  ledger.ProcessGone(high);
  ASSERT_TRUE(ledger.Trim("", "", 0).ok());
  DestroyDoomed();
  Acquire(gone, kGranule, 4);
  ledger.ProcessGone(gone, /*steps=*/1);
  const auto more = ledger.BeginAcquire(last, {.device_uuid = "GPU-1", .bytes = kCapacity});
  ASSERT_TRUE(more.ok() && more->waiter) << more.status();
  EXPECT_TRUE(ledger.TakeRevoked().empty());
  while (ledger.HasEnding()) ledger.ContinueEnding(/*steps=*/1);
  EXPECT_TRUE(ledger.AdmitWaiting().empty());
  EXPECT_EQ(ledger.TakeRevoked(), std::vector<SessionId>{low});
}

TEST_F(LedgerTest, TheTicketsOfASessionThatEndsOpenNothing) {
  const SessionId session = OpenSession("team"), other = OpenSession("team");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 3);
  const Secret ticket = Share(session, items[2].lease);
  ledger.SocketClosed(session, /*steps=*/1);
  ASSERT_TRUE(ledger.HasEnding());
  EXPECT_TRUE(absl::IsNotFound(ledger.BeginOpen(other, {ticket}).status()));
}

// Events and publications of a session also end in parts.
TEST_F(LedgerTest, EventsAndPublicationsEndInParts) {
  const SessionId session = OpenSession("team"), other = OpenSession("team");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 4);
  const LeaseId beside = OpenTicket(other, Share(session, items[0].lease)).lease;
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(ledger.RegisterEvent(session, {.name = name}, "GPU-1", {}).ok());
    ASSERT_TRUE(
        ledger
            .Publish(session,
                     {.name = name, .leases = {items[0].lease, items[1].lease}, .ephemeral = true})
            .ok());
  }
  ASSERT_TRUE(ledger.RegisterEvent(session, {.lease = items[0].lease}, "GPU-1", {}).ok());
  EXPECT_TRUE(ledger.GetEvents(other, {.name = "c"}).ok());
  EXPECT_TRUE(ledger.GetEvents(other, {.lease = beside}).ok());
  ledger.SocketClosed(session, /*steps=*/1);
  // Those left can no longer be found.
  EXPECT_TRUE(absl::IsNotFound(ledger.GetEvents(other, {.name = "c"}).status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.GetEvents(other, {.lease = beside}).status()));
  EXPECT_TRUE(ledger.RegisterEvent(other, {.name = "c"}, "GPU-1", {}).ok());
  EXPECT_TRUE(ledger.GetEvents(other, {.name = "c"}).ok());
  std::vector<size_t> publications;
  for (; ledger.HasEnding(); ledger.ContinueEnding(/*steps=*/2)) {
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    publications.push_back(ledger.look().ListPublications("")->size());
  }
  // In each part end: one event, and then two, or a publication of two segments, or two leases.
  EXPECT_EQ(publications, (std::vector<size_t>{3, 3, 2, 1, 0, 0, 0}));
  EXPECT_EQ(ledger.TakeEndedPublications().size(), 3u);
  EXPECT_TRUE(ledger.GetEvents(other, {.name = "c"}).ok());
  EXPECT_EQ(Usage("team").leased, kGranule);
}

}  // namespace
}  // namespace gpumemd
