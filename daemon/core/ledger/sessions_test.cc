// SPDX-License-Identifier: Apache-2.0
// The life of sessions: how they begin, and how they end, at once or in parts.
#include <vector>

#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using SessionsTest = LedgerFixture;
using SessionEndTest = LedgerFixture;

TEST_F(SessionsTest, ATokenNamesALiveSession) {
  const Secret token = NewSecret();
  const auto session = ledger.OpenSession("team", {.client_name = "trainer"}, token);
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(*ledger.state().FindByToken(token), *session);
  EXPECT_EQ(*ledger.look().TenantOf(*session), "team");
  Acquire(*session, kGranule);
  ledger.endings().SocketClosed(*session);
  EXPECT_TRUE(absl::IsNotFound(ledger.state().FindByToken(token).status()));
  const auto views = ledger.look().ListSessions("");
  ASSERT_EQ(views->size(), 1u);  // its process may still map the segment
  EXPECT_FALSE(views->at(0).live);
  EXPECT_EQ(views->at(0).details.client_name, "trainer");
  EXPECT_TRUE(absl::IsAborted(ledger.sessions().BeginCall(*session)));
}

TEST_F(SessionsTest, SocketAndProcessEndInEitherOrder) {
  for (const bool socket_first : {true, false}) {
    const SessionId session = OpenSession("team");
    const auto item = AcquireOne(session, kGranule);
    if (socket_first) {
      ledger.endings().SocketClosed(session);
      EXPECT_EQ(StateOf(item), SegmentState::kLingering);
      EXPECT_EQ(Usage("team").lingering, kGranule);
      EXPECT_THAT(Drain(ledger.effects().doomed), IsEmpty());
      EXPECT_THAT(Drain(ledger.effects().forgotten), IsEmpty());
    }
    ledger.endings().ProcessGone(session);
    EXPECT_THAT(Drain(ledger.effects().forgotten), ElementsAre(session));
    EXPECT_THAT(DestroyDoomed(), ElementsAre(item.segment));
    ledger.endings().SocketClosed(session);  // without effect
    ledger.endings().ProcessGone(session);
    EXPECT_THAT(Drain(ledger.effects().forgotten), IsEmpty());
    EXPECT_EQ(ledger.state().tenants.size(), 0u);
  }
}

TEST_F(SessionsTest, ASessionThatMapsNothingIsForgottenWithItsSocket) {
  const SessionId session = OpenSession("team");
  Release(session, Acquire(session, kGranule));
  ledger.endings().SocketClosed(session);
  EXPECT_THAT(Drain(ledger.effects().forgotten), ElementsAre(session));
}

TEST_F(SessionsTest, ACallInFlightKeepsItsSession) {
  const SessionId session = OpenSession("team");
  ASSERT_TRUE(ledger.sessions().BeginCall(session).ok());
  ledger.endings().ProcessGone(session);
  EXPECT_THAT(Drain(ledger.effects().forgotten), IsEmpty());
  EXPECT_EQ(*ledger.look().TenantOf(session), "team");
  ledger.sessions().EndCall(session);
  EXPECT_THAT(Drain(ledger.effects().forgotten), ElementsAre(session));
}

TEST_F(SessionsTest, AnOperationUnderWayIsACall) {
  const SessionId session = OpenSession("team");
  EXPECT_FALSE(ledger.sessions().HasCalls(SessionId{99}));
  EXPECT_FALSE(ledger.sessions().HasCalls(session));
  const Operation operation = Begin(session, kGranule);
  EXPECT_TRUE(ledger.sessions().HasCalls(session));
  Finish(operation);
  EXPECT_FALSE(ledger.sessions().HasCalls(session));
}

TEST_F(SessionsTest, LingeringSessionsCount) {
  ledger.tenants().Configure({{"team", {.max_sessions = 1}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, kGranule);
  ledger.endings().SocketClosed(session);
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.OpenSession("team", {}, NewSecret()).status()));
  EXPECT_EQ(ledger.look().GetTenant("team")->sessions, 1u);
  ledger.endings().ProcessGone(session);
  OpenSession("team");
}

TEST_F(SessionsTest, RetainedMemoryIsGivenUpWithTheLastSession) {
  const SessionId first = OpenSession("team");
  const SessionId last = OpenSession("team");
  const auto items = Acquire(first, kGranule, 2);
  Release(first, items);
  ledger.endings().SocketClosed(first);
  EXPECT_EQ(Usage("team").retained, 2 * kGranule);
  ledger.endings().SocketClosed(last);
  EXPECT_THAT(DestroyDoomed(), UnorderedElementsAre(items[0].segment, items[1].segment));
}

TEST_F(SessionsTest, AgesComeFromTheClock) {
  const SessionId session = OpenSession("team");
  now += absl::Seconds(5);
  const auto item = AcquireOne(session, kGranule);
  now += absl::Seconds(2);
  EXPECT_EQ(ledger.look().ListSessions("team")->at(0).age, absl::Seconds(7));
  EXPECT_EQ(Segment(item.segment).age, absl::Seconds(2));
}

// --- Ends in parts ---------------------------------------------------------------------

TEST_F(SessionEndTest, ALargeSessionEndsInParts) {
  const Secret token = NewSecret();
  const SessionId session = ledger.OpenSession("team", {}, token).value();
  const SessionId other = OpenSession("team");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 5);
  ledger.endings().SocketClosed(session, /*steps=*/2);
  // It no longer counts as a session, but what it has not given back yet is charged.
  EXPECT_TRUE(ledger.endings().HasAny());
  EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  EXPECT_TRUE(absl::IsAborted(ledger.sessions().BeginCall(session)));
  EXPECT_TRUE(absl::IsNotFound(ledger.state().FindByToken(token).status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.sessions().Resume(session, {})));
  EXPECT_EQ(ledger.look().ListSessions("team")->at(0).leases, 3u);
  EXPECT_EQ(Usage("team").leased, 3 * kGranule);
  EXPECT_EQ(Usage("team").lingering, 2 * kGranule);
  // Its process ends meanwhile. No segment is given up before the session's leases have ended.
  ledger.endings().ProcessGone(session, /*steps=*/1);
  EXPECT_EQ(Usage("team").leased, 2 * kGranule);
  EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  size_t parts = 0;
  for (; ledger.endings().HasAny(); ++parts) {
    EXPECT_TRUE(Drain(ledger.effects().forgotten).empty());
    ledger.endings().Continue(/*steps=*/2);
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  }
  EXPECT_EQ(parts, 4u);  // two leases, and five mappings
  EXPECT_EQ(Drain(ledger.effects().forgotten), std::vector<SessionId>{session});
  EXPECT_EQ(Usage("team").retained, 5 * kGranule);
  EXPECT_EQ(ledger.look().Measure().devices[0].reclaimed, 5 * kGranule);
  // The last session of a tenant leaves nothing retained.
  ledger.endings().SocketClosed(other, /*steps=*/2);
  for (; ledger.endings().HasAny(); ledger.endings().Continue(/*steps=*/2)) {
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  }
  EXPECT_EQ(DestroyDoomed().size(), 5u);
}

TEST_F(SessionEndTest, ReconcileInParts) {
  const SessionId session = OpenSession("team");
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger.reconciliation().Begin(session)));
  std::vector<LeaseId> kept;
  for (const Operation::Item& item : Acquire(session, kGranule, 7)) kept.push_back(item.lease);
  PeerIdentity peer;
  peer.pid = pids;
  ASSERT_TRUE(ledger.sessions().Resume(session, peer).ok());
  ASSERT_TRUE(ledger.reconciliation().Begin(session).ok());
  EXPECT_TRUE(absl::IsUnavailable(ledger.reconciliation().Begin(session))) << "one at a time";
  kept.resize(3);
  kept.push_back(LeaseId{99});
  Reconciliation::Statement statement(kept, {});
  size_t parts = 1;
  for (; !ledger.reconciliation().Reconcile(session, statement, /*steps=*/2).value(); ++parts) {
    EXPECT_EQ(ledger.state().sessions.at(session)->presence, Presence::kReturning);
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  }
  EXPECT_GE(parts, 7u);
  EXPECT_EQ(statement.TakeUnknown(), std::vector<LeaseId>{LeaseId{99}});
  EXPECT_EQ(ledger.state().sessions.at(session)->presence, Presence::kHere);
  EXPECT_EQ(Usage("team").leased, 3 * kGranule);
  ledger.sessions().EndCall(session);
  // The answer may be lost; once the session makes another call, it was not.
  EXPECT_TRUE(ledger.reconciliation().Begin(session).ok());
  EXPECT_EQ(ledger.state().sessions.at(session)->presence, Presence::kReturning)
      << "no other call may begin before it is complete";
  EXPECT_TRUE(ledger.reconciliation().Reconcile(session, kept, {}).ok());
  EXPECT_EQ(ledger.state().sessions.at(session)->presence, Presence::kHere);
  ledger.sessions().EndCall(session);
  EXPECT_TRUE(ledger.sessions().BeginCall(session).ok());
  ledger.sessions().EndCall(session);
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger.reconciliation().Begin(session)));
  // A statement made on one connection does not count for the next.
  ASSERT_TRUE(ledger.sessions().Resume(session, peer).ok());
  Reconciliation::Statement late(kept, {});
  EXPECT_FALSE(ledger.reconciliation().Reconcile(session, late, /*steps=*/1).value());
  ASSERT_TRUE(ledger.sessions().Resume(session, peer).ok());
  EXPECT_TRUE(
      absl::IsUnavailable(ledger.reconciliation().Reconcile(session, late, /*steps=*/1).status()));
}

// The memory of a process that is gone comes back in parts. Its successor waits until all of it is
// back.
TEST_F(SessionEndTest, NoRequestIsRefusedWhileASessionEnds) {
  const SessionId dead = OpenSession("team"), next = OpenSession("team");
  const SessionId other = OpenSession("others");
  Acquire(dead, 128 * kGranule, 6);
  const std::vector<Operation::Item> kept = Acquire(other, 256 * kGranule);
  const AcquireSpec fits = {.device_uuid = "GPU-1", .bytes = 768 * kGranule};
  const AcquireSpec too_much = {.device_uuid = "GPU-1", .bytes = 769 * kGranule};
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.admission().BeginAcquire(next, fits).status()));
  ledger.endings().ProcessGone(dead, /*steps=*/2);
  ASSERT_TRUE(ledger.endings().HasAny());
  const auto first = ledger.admission().BeginAcquire(next, fits);
  ASSERT_TRUE(first.ok() && first->waiter) << first.status();
  const auto second = ledger.admission().BeginAcquire(next, too_much);
  ASSERT_TRUE(second.ok() && second->waiter) << second.status();
  while (ledger.endings().HasAny()) {
    EXPECT_TRUE(ledger.admission().AdmitWaiting().empty());
    EXPECT_FALSE(ledger.admission().IsBlocked(*first->waiter));
    EXPECT_FALSE(ledger.admission().IsBlocked(*second->waiter));
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    ledger.endings().Continue(/*steps=*/2);
  }
  // All memory is back now.
  const std::vector<AdmissionControl::Admitted> refused = ledger.admission().AdmitWaiting();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].waiter, *second->waiter);
  ExpectDenial(refused[0].operation.status(), Denial::Cause::kCapacity, "team", "GPU-1",
               769 * kGranule, 256 * kGranule, kCapacity);
  EXPECT_EQ(DestroyDoomed().size(), 6u);
  const std::vector<AdmissionControl::Admitted> granted = ledger.admission().AdmitWaiting();
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].waiter, *first->waiter);
  Finish(*granted[0].operation);
  Release(other, kept);
}

TEST_F(SessionEndTest, NothingIsRevokedWhileASessionEnds) {
  ledger.tenants().Configure({{"low", {.priority = -1}}, {"high", {.priority = 1}}}, {});
  const SessionId dead = OpenSession("high"), low = OpenSession("low"), high = OpenSession("high");
  Acquire(dead, 128 * kGranule, 4);
  const auto lent = ledger.admission().BeginAcquire(
      low, {.device_uuid = "GPU-1", .bytes = 512 * kGranule, .revocable = true});
  ASSERT_TRUE(lent.ok() && lent->operation);
  Finish(*lent->operation);
  ledger.endings().ProcessGone(dead, /*steps=*/1);
  const auto enough =
      ledger.admission().BeginAcquire(high, {.device_uuid = "GPU-1", .bytes = 512 * kGranule});
  ASSERT_TRUE(enough.ok() && enough->waiter) << enough.status();
  while (ledger.endings().HasAny()) {
    EXPECT_TRUE(ledger.admission().AdmitWaiting().empty());
    ledger.endings().Continue(/*steps=*/1);
  }
  EXPECT_TRUE(ledger.admission().AdmitWaiting().empty());
  DestroyDoomed();
  const std::vector<AdmissionControl::Admitted> granted = ledger.admission().AdmitWaiting();
  ASSERT_EQ(granted.size(), 1u);
  Finish(*granted[0].operation);
  EXPECT_TRUE(Drain(ledger.effects().revoked).empty());

  // If the memory that comes back is not enough, revocable memory is taken back in the end.
  const SessionId gone = OpenSession("high"), last = OpenSession("high");
  ledger.endings().ProcessGone(high);
  ASSERT_TRUE(ledger.segments().Trim("", "", 0).ok());
  DestroyDoomed();
  Acquire(gone, kGranule, 4);
  ledger.endings().ProcessGone(gone, /*steps=*/1);
  const auto more =
      ledger.admission().BeginAcquire(last, {.device_uuid = "GPU-1", .bytes = kCapacity});
  ASSERT_TRUE(more.ok() && more->waiter) << more.status();
  EXPECT_TRUE(Drain(ledger.effects().revoked).empty());
  while (ledger.endings().HasAny()) ledger.endings().Continue(/*steps=*/1);
  EXPECT_TRUE(ledger.admission().AdmitWaiting().empty());
  EXPECT_EQ(Drain(ledger.effects().revoked), std::vector<SessionId>{low});
}

TEST_F(SessionEndTest, TheTicketsOfASessionThatEndsOpenNothing) {
  const SessionId session = OpenSession("team"), other = OpenSession("team");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 3);
  const Secret ticket = Share(session, items[2].lease);
  ledger.endings().SocketClosed(session, /*steps=*/1);
  ASSERT_TRUE(ledger.endings().HasAny());
  EXPECT_TRUE(absl::IsNotFound(ledger.operations().BeginOpen(other, {ticket}).status()));
}

// Events and publications of a session also end in parts.
TEST_F(SessionEndTest, EventsAndPublicationsEndInParts) {
  const SessionId session = OpenSession("team"), other = OpenSession("team");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 4);
  const LeaseId beside = OpenTicket(other, Share(session, items[0].lease)).lease;
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(ledger.events().Register(session, {.name = name}, "GPU-1", {}).ok());
    ASSERT_TRUE(
        ledger.publications()
            .Publish(session,
                     {.name = name, .leases = {items[0].lease, items[1].lease}, .ephemeral = true})
            .ok());
  }
  ASSERT_TRUE(ledger.events().Register(session, {.lease = items[0].lease}, "GPU-1", {}).ok());
  EXPECT_TRUE(ledger.events().Find(other, {.name = "c"}).ok());
  EXPECT_TRUE(ledger.events().Find(other, {.lease = beside}).ok());
  ledger.endings().SocketClosed(session, /*steps=*/1);
  // Those left can no longer be found.
  EXPECT_TRUE(absl::IsNotFound(ledger.events().Find(other, {.name = "c"}).status()));
  EXPECT_TRUE(absl::IsNotFound(ledger.events().Find(other, {.lease = beside}).status()));
  EXPECT_TRUE(ledger.events().Register(other, {.name = "c"}, "GPU-1", {}).ok());
  EXPECT_TRUE(ledger.events().Find(other, {.name = "c"}).ok());
  std::vector<size_t> publications;
  for (; ledger.endings().HasAny(); ledger.endings().Continue(/*steps=*/2)) {
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    publications.push_back(ledger.look().ListPublications("")->size());
  }
  // In each part end: one event, and then two, or a publication of two segments, or two leases.
  EXPECT_EQ(publications, (std::vector<size_t>{3, 3, 2, 1, 0, 0, 0}));
  EXPECT_EQ(Drain(ledger.effects().ended_publications).size(), 3u);
  EXPECT_TRUE(ledger.events().Find(other, {.name = "c"}).ok());
  EXPECT_EQ(Usage("team").leased, kGranule);
}

}  // namespace
}  // namespace gpumemd
