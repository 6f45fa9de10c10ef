// SPDX-License-Identifier: Apache-2.0
// What of sessions, tenants and their requests outlives the daemon, by example. Segments:
// restore_segments_test.cc. The model test covers the rest.
#include <string>
#include <vector>

#include "daemon/core/ledger/testing/restart_fixture.h"

namespace gpumemd {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::IsEmpty;

using LedgerRestoreTest = LedgerRestartFixture;

TEST_F(LedgerRestoreTest, SessionKeepsItsTokenLeasesAndTickets) {
  const Secret token = NewSecret();
  const SessionId session =
      ledger
          .OpenSession("a", {.peer = {.pid = 42, .start_time = 7}, .client_name = "trainer"}, token)
          .value();
  const Operation::Item item = AcquireOne(session, 3 * kGranule);
  const Secret ticket = Share(session, item.lease);
  now += absl::Seconds(5);

  const Restored restored = Restart();
  EXPECT_EQ(restored.sessions, 1u);
  EXPECT_EQ(restored.segments, 1u);
  EXPECT_EQ(restored.leases, 1u);
  EXPECT_THAT(restored.lost, IsEmpty());
  EXPECT_EQ(ledger.state().FindByToken(token).value(), session);
  const std::vector<SessionView> sessions = *ledger.look().ListSessions("a");
  ASSERT_EQ(sessions.size(), 1u);
  EXPECT_EQ(sessions[0].details.client_name, "trainer");
  EXPECT_EQ(sessions[0].details.peer.pid, 42);
  EXPECT_EQ(sessions[0].leases, 1u);
  EXPECT_EQ(sessions[0].age, absl::Seconds(5));
  EXPECT_EQ(ledger.look().ListSegments("a", "")->at(0).age, absl::Seconds(5));

  // The ticket from before works, and sharing again returns the same one.
  const Operation::Item opened = OpenTicket(OpenSession("a"), ticket);
  EXPECT_EQ(opened.segment, item.segment);
  EXPECT_EQ(Share(session, item.lease), ticket);
  EXPECT_FALSE(Opens(OpenSession("b"), ticket)) << "it is for the tenant's own sessions";
  Release(session, {item});
  EXPECT_FALSE(Opens(session, ticket));
}

TEST_F(LedgerRestoreTest, MemoryOfDeadProcessesIsRetainedOrGivenUp) {
  const SessionId living = OpenSession("a"), dead = OpenSession("a"), alone = OpenSession("b");
  const Operation::Item kept = AcquireOne(dead, kGranule);
  const Operation::Item goes = AcquireOne(alone, kGranule);
  const Secret ticket = Share(dead, kept.lease);
  const Restored restored = Restart({.dead = {dead, alone}});
  EXPECT_EQ(restored.sessions, 1u);
  EXPECT_EQ(restored.leases, 0u);
  EXPECT_EQ(StateOf(kept.segment), SegmentState::kRetained);
  EXPECT_EQ(StateOf(goes.segment), SegmentState::kReleasing);
  EXPECT_FALSE(Opens(living, ticket));
  EXPECT_THAT(Drain(ledger.effects().forgotten), IsEmpty()) << "nobody has ever watched them";
  EXPECT_THAT(DestroyDoomed(), ElementsAre(goes.segment));
  EXPECT_EQ(ledger.look().GetTenant("b").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(AcquireOne(living, kGranule).segment, kept.segment);
}

TEST_F(LedgerRestoreTest, LoweredQuotaLimitsRetainedMemory) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 3);
  Release(session, items);
  Record();
  tenants["a"].max_retained_bytes = kGranule;
  Restart();
  EXPECT_EQ(Usage("a").retained, kGranule);
  EXPECT_EQ(DestroyDoomed().size(), 2u);
}

TEST_F(LedgerRestoreTest, EndedSessionLingersWhileItsProcessMapsMemory) {
  const SessionId session = OpenSession("a"), idle = OpenSession("a");
  const Operation::Item item = AcquireOne(session, kGranule);
  ASSERT_TRUE(ledger.sessions().BeginCall(idle).ok());  // that is why it still exists
  ledger.endings().SocketClosed(session);
  ledger.endings().SocketClosed(idle);
  const Restored restored = Restart();
  EXPECT_EQ(restored.sessions, 0u);
  EXPECT_EQ(restored.segments, 1u);
  EXPECT_THAT(Drain(ledger.effects().forgotten), ElementsAre(idle));
  EXPECT_EQ(StateOf(item.segment), SegmentState::kLingering);
  EXPECT_EQ(ledger.state().charged(0), kGranule);
  ledger.endings().ProcessGone(session);
  EXPECT_THAT(DestroyDoomed(), ElementsAre(item.segment));
  EXPECT_THAT(Drain(ledger.effects().forgotten), ElementsAre(session));
  EXPECT_EQ(ledger.state().tenants.size(), 0u);
}

TEST_F(LedgerRestoreTest, ChargesAndLimitsAreExact) {
  Configure({{"a", {.limit_bytes = 6 * kGranule, .release = ReleasePolicy::kOnExit}}});
  const SessionId session = OpenSession("a");
  AcquireOne(session, 3 * kGranule);
  const Operation::Item lingering = AcquireOne(session, kGranule);
  Release(session, {lingering});
  Restart();
  EXPECT_EQ(Usage("a").leased, 3 * kGranule);
  EXPECT_EQ(Usage("a").lingering, kGranule);
  EXPECT_EQ(Usage("a").peak, 4 * kGranule);
  ExpectDenial(Ask(session, 3 * kGranule).status(), Denial::Cause::kDeviceLimit, "a", "GPU-1",
               3 * kGranule, 4 * kGranule, 6 * kGranule);
  AcquireOne(session, 2 * kGranule);
  ExpectDenial(Ask(session, 1).status(), Denial::Cause::kDeviceLimit, "a", "GPU-1", kGranule,
               6 * kGranule, 6 * kGranule);
}

TEST_F(LedgerRestoreTest, MembersCountForTheirTeam) {
  Configure({{"team", {.limit_bytes = 4 * kGranule}},
             {"one", {.max_sessions = 1, .parent = "team"}},
             {"two", {.parent = "team"}}});
  const SessionId one = OpenSession("one"), two = OpenSession("two");
  AcquireOne(one, 2 * kGranule);
  AcquireOne(two, kGranule);
  Restart();
  EXPECT_EQ(Usage("team").charged, 3 * kGranule);
  EXPECT_EQ(ledger.look().GetTenant("team")->sessions, 2u);
  EXPECT_EQ(ledger.OpenSession("one", {}, NewSecret()).status().code(),
            StatusCode::kResourceExhausted);
  ExpectDenial(Ask(two, 2 * kGranule).status(), Denial::Cause::kDeviceLimit, "two", "GPU-1",
               2 * kGranule, 3 * kGranule, 4 * kGranule);
  AcquireOne(two, kGranule);
}

TEST_F(LedgerRestoreTest, ProcessStaysFirmOrRevocable) {
  const SessionId firm = OpenSession("a"), revocable = OpenSession("a"), mapped = OpenSession("a");
  AcquireOne(firm, kGranule);
  AcquireAs(revocable, {.bytes = kGranule, .revocable = true});
  const auto lease_types_of = [&](SessionId session) {
    std::string types;
    for (bool as_revocable : {false, true}) {
      const auto asked = Ask(session, {.bytes = kGranule, .revocable = as_revocable});
      types += !asked.ok() ? "" : as_revocable ? "revocable" : "firm";
      if (asked.ok()) ledger.operations().Abort(**asked, /*handed_over=*/false);
    }
    return types;
  };
  // A process that has released everything is neither firm nor revocable.
  Release(mapped, {AcquireAs(mapped, {.bytes = kGranule, .revocable = true}).items.at(0)});
  EXPECT_EQ(lease_types_of(mapped), "firmrevocable");
  Restart();
  EXPECT_EQ(lease_types_of(firm), "firm");
  EXPECT_EQ(lease_types_of(revocable), "revocable");
  EXPECT_EQ(lease_types_of(mapped), "firmrevocable");
  EXPECT_EQ(Usage("a").revocable, kGranule);
}

// Whether a process is firm or revocable is recorded with each of its sessions that maps anything.
TEST_F(LedgerRestoreTest, SessionsOfAProcessAreFirmOrRevocableTogether) {
  const SessionId one = OpenSessionOf("a", 42), other = OpenSessionOf("a", 42);
  const Operation::Item item = AcquireAs(one, {.bytes = kGranule, .revocable = true}).items.at(0);
  Record();
  EXPECT_TRUE(image.sessions.at(one).revocable);
  EXPECT_FALSE(image.sessions.at(other).revocable);
  Restart();
  EXPECT_EQ(Ask(other, kGranule).status().code(), StatusCode::kFailedPrecondition);
  Release(one, {item});
  AcquireOne(other, kGranule);
  Restart();
  EXPECT_EQ(Ask(one, {.bytes = kGranule, .revocable = true}).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(LedgerRestoreTest, EndedSessionsOfOneProcessAreMerged) {
  // Two ended sessions of one process, which only calls in flight have kept apart. The restart
  // merges them.
  const std::vector<SessionId> sessions = {OpenSessionOf("a", 42), OpenSessionOf("a", 42),
                                           OpenSessionOf("a", 42)};
  SegmentId segment{};
  for (SessionId session : sessions) {
    const Operation::Item item = AcquireKind(session, Kind::kMempool);
    segment = item.segment;
    Release(session, {item});
    ASSERT_TRUE(ledger.sessions().BeginCall(session).ok());
  }
  for (SessionId session : sessions) ledger.endings().SocketClosed(session);
  ASSERT_EQ(ledger.state().sessions.size(), 3u);
  Restart();
  EXPECT_THAT(Drain(ledger.effects().forgotten), ElementsAre(sessions[0], sessions[1]));
  EXPECT_EQ(ledger.state().charged(0), kGranule);
  ledger.endings().ProcessGone(sessions[2]);
  EXPECT_THAT(DestroyDoomed(), ElementsAre(segment));
}

// Its Welcome was lost: the process sends Hello once more, and will never ask for that session.
TEST_F(LedgerRestoreTest, SessionOfARepeatedHelloEnds) {
  const auto open = [this](pid_t pid, uint32_t connect_id) {
    auto session = ledger.OpenSession(
        "a", {.peer = {.pid = pid, .start_time = 7}, .connect_id = connect_id}, NewSecret());
    EXPECT_TRUE(session.ok()) << session.status();
    return session.value_or(SessionId{});
  };
  const SessionId unheard = open(42, 5), heard = open(42, 6), others = open(43, 5),
                  nameless = open(42, 0);
  Restart();
  const SessionId again = open(42, 5);
  EXPECT_NE(again, unheard);
  EXPECT_THAT(Drain(ledger.effects().forgotten), ElementsAre(unheard));
  EXPECT_EQ(ledger.state().sessions.size(), 4u);
  // A session whose client is connected is not ended. Nor is one whose client has come back.
  ASSERT_TRUE(ledger.sessions().Resume(heard, {.pid = 42, .start_time = 7}).ok());
  open(42, 5);
  open(42, 6);
  open(42, 0);
  EXPECT_THAT(Drain(ledger.effects().forgotten), IsEmpty());
  ASSERT_TRUE(ledger.sessions().Resume(others, {.pid = 43, .start_time = 7}).ok());
  ASSERT_TRUE(ledger.sessions().Resume(nameless, {.pid = 42, .start_time = 7}).ok());
}

// /proc hides its start time, or showed it to an earlier daemon only.
TEST_F(LedgerRestoreTest, SessionOfAHiddenProcessIsResumedAndThenCertain) {
  const auto certain = [this](SessionId id) {
    return ledger.state().sessions.at(id)->details.certain;
  };
  for (const uint64_t start_time : {0, 7}) {
    const SessionId id =
        ledger
            .OpenSession("a", {.peer = {.pid = 42, .start_time = start_time}, .certain = false},
                         NewSecret())
            .value();
    Restart();
    EXPECT_EQ(ledger.sessions().Resume(id, {.pid = 43}).code(), StatusCode::kNotFound);
    ASSERT_TRUE(ledger.sessions().Resume(id, {.pid = 42}, /*certain=*/false).ok());
    EXPECT_FALSE(certain(id));
    ASSERT_TRUE(ledger.sessions().Resume(id, {.pid = 42}).ok());
    Restart();
    EXPECT_TRUE(certain(id));
    ASSERT_TRUE(ledger.sessions().Resume(id, {.pid = 42}, /*certain=*/false).ok());
    EXPECT_TRUE(certain(id)) << "it was shown once";
  }
}

TEST_F(LedgerRestoreTest, ARepeatedHelloHasTheRoomOfTheSessionThatEnds) {
  Configure({{"a", {.max_sessions = 1}}});
  const SessionDetails process = {.peer = {.pid = 42, .start_time = 7}, .connect_id = 5};
  SessionDetails another = process;
  another.connect_id = 6;
  const SessionId unheard = ledger.OpenSession("a", process, NewSecret()).value();
  Restart();
  EXPECT_EQ(ledger.sessions().CheckRoom("a", another).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ledger.sessions().CheckRoom("a", process), absl::OkStatus());
  const SessionId again = ledger.OpenSession("a", process, NewSecret()).value();
  EXPECT_NE(again, unheard);
  Restart();
  // The session may also have ended by itself.
  ledger.endings().SocketClosed(again);
  EXPECT_TRUE(ledger.state().sessions.empty());
  EXPECT_TRUE(ledger.OpenSession("a", process, NewSecret()).ok());
}

// Processes of sessions without a record are ignored.
TEST_F(LedgerRestoreTest, OnlyRecordedSessionsAreRestored) {
  const SessionId session = OpenSession("a");
  Survivors survivors;
  for (SessionId id : {session, SessionId{99}}) survivors.sessions[id].peer.pid = 42;
  Ledger next(ledger.state().devices, Bounds{}, [this] { return now; });
  EXPECT_EQ(next.Restore(ledger.Image(), survivors).sessions, 1u);
  EXPECT_FALSE(next.state().sessions.contains(SessionId{99}));
}

TEST_F(LedgerRestoreTest, RepeatedEventRegistrationGetsTheSameAnswer) {
  const SessionId session = OpenSession("a");
  const Operation::Item item = AcquireOne(session, kGranule);
  const IpcEventId named = *ledger.events().Register(session, {.name = "done"}, "GPU-1", {}, 7);
  const IpcEventId beside =
      *ledger.events().Register(session, {.lease = item.lease}, "GPU-1", {}, 8);
  Restart();
  ledger.SetDraining(true);  // earlier operations are not new requests
  EXPECT_EQ(*ledger.events().Register(session, {.name = "done"}, "GPU-1", {}, 7), named);
  EXPECT_EQ(*ledger.events().Register(session, {.lease = item.lease}, "GPU-1", {}, 8), beside);
  ledger.SetDraining(false);
  EXPECT_EQ(ledger.events().Register(session, {.name = "done"}, "GPU-1", {}, 9).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ledger.Image().ipc_events.size(), 2u);
}

TEST_F(LedgerRestoreTest, EventsOutliveTheDaemon) {
  const SessionId session = OpenSession("a"), other = OpenSession("a"), dead = OpenSession("a");
  const Operation::Item item = AcquireOne(session, kGranule), ended = AcquireOne(session, kGranule);
  const Operation::Item opened = OpenTicket(other, Share(session, item.lease));
  const Operation::Item opened_ended = OpenTicket(other, Share(session, ended.lease));
  ExportData handle{};
  handle[63] = 9;
  const IpcEventId named = *ledger.events().Register(session, {.name = "done"}, "GPU-1", handle);
  const IpcEventId beside = *ledger.events().Register(session, {.lease = item.lease}, "GPU-1", {});
  const IpcEventId hidden = *ledger.events().Register(session, {.lease = ended.lease}, "GPU-1", {});
  ASSERT_TRUE(ledger.events().Register(dead, {.name = "of the dead"}, "GPU-1", {}).ok());
  ASSERT_TRUE(ledger.events().Find(other, {.lease = opened.lease}).ok());  // hands it out
  const IpcEventId unseen = *ledger.events().Register(session, {.lease = item.lease}, "GPU-1", {});
  Release(session, {ended});

  Restart({.dead = {dead}});
  const auto found = ledger.events().Find(other, {.name = "done"});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->at(0).id, named);
  EXPECT_EQ(found->at(0).session, session);
  EXPECT_EQ(found->at(0).device_uuid, "GPU-1");
  EXPECT_EQ(found->at(0).handle, handle);
  EXPECT_EQ(*ledger.events().Unregister(session, beside), true);
  EXPECT_EQ(ledger.events().Find(other, {.lease = opened.lease})->at(0).id, unseen);
  // Its lease has ended, so it can no longer be found, but it exists until its session ends it.
  EXPECT_EQ(ledger.events().Find(other, {.lease = opened_ended.lease}).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(*ledger.events().Unregister(session, hidden), false);
  EXPECT_EQ(ledger.events().Register(other, {.name = "done"}, "GPU-1", {}).status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_EQ(ledger.events().Find(other, {.name = "of the dead"}).status().code(),
            StatusCode::kNotFound);
  ledger.endings().SocketClosed(session);
  EXPECT_EQ(ledger.events().Find(other, {.name = "done"}).status().code(), StatusCode::kNotFound);
}

TEST_F(LedgerRestoreTest, WaitersDrainingAndRevocationsEnd) {
  Configure({{"first", {.guarantee_bytes = kCapacity, .priority = 1}}});
  const SessionId holder = OpenSession("a"), first = OpenSession("first");
  const Operation::Item item =
      AcquireAs(holder, {.bytes = kCapacity, .revocable = true}).items.at(0);
  ASSERT_TRUE(ledger.sessions().BeginCall(first).ok());
  const AcquireSpec wanted = {.bytes = kCapacity, .waits = true};
  ASSERT_TRUE(ledger.admission().BeginAcquire(first, wanted)->waiter.has_value());
  ASSERT_THAT(Drain(ledger.effects().revoked), ElementsAre(holder));
  ledger.SetDraining(true);
  Restart();
  EXPECT_FALSE(ledger.state().draining);
  EXPECT_EQ(ledger.revocations().NextOverdue(), absl::InfiniteFuture());
  EXPECT_THAT(ledger.look().RevokedLeases(holder).leases, IsEmpty());
  EXPECT_THAT(*ledger.admission().ListWaiting("", ""), IsEmpty());
  EXPECT_EQ(ledger.look().GetTenant("first")->in_flight, 0u);
  // A repeated request revokes the memory again.
  ASSERT_TRUE(ledger.sessions().BeginCall(first).ok());
  ASSERT_TRUE(ledger.admission().BeginAcquire(first, wanted)->waiter.has_value());
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(holder));
  EXPECT_THAT(ledger.look().RevokedLeases(holder).leases, ElementsAre(item.lease));
}

TEST_F(LedgerRestoreTest, SecondRestartKeepsTheState) {
  const SessionId session = OpenSession("a");
  const Operation::Item item = AcquireOne(session, kGranule);
  const Operation::Item opened = OpenTicket(session, Share(session, item.lease));
  AcquireKind(session, Kind::kMempool);
  AcquireKind(session, Kind::kMempool);
  Restart();
  EXPECT_EQ(image.exposures.at({session, item.segment}).count, 2u);
  EXPECT_EQ(image.pool_imports.at({session, std::string("GPU-1")}).count, 2u);
  const JournalImage before = image;
  Restart();  // checks that the record matches the state
  EXPECT_TRUE(image == before) << "a restart at which nobody is gone changes nothing";
  const Operation::Item other = AcquireOne(session, kGranule);
  Release(session, {item, opened});
  Restart();
  EXPECT_EQ(StateOf(item.segment), SegmentState::kRetained);
  EXPECT_EQ(StateOf(other.segment), SegmentState::kLeased);
  EXPECT_EQ(image.leases.size(), 3u);
}

// A session with many leases ends in parts, and the daemon may be killed between them.
TEST_F(LedgerRestoreTest, BegunEndOfASessionIsFinished) {
  const SessionId session = OpenSession("a"), other = OpenSession("a");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 6);
  const Secret ticket = Share(session, items[5].lease);
  OpenTicket(other, ticket);
  ledger.endings().SocketClosed(session, /*steps=*/2);
  EXPECT_TRUE(ledger.endings().HasAny());
  EXPECT_EQ(ledger.look().ListSessions("")->at(0).leases, 4u);
  const Restored restored = Restart();
  EXPECT_EQ(restored.sessions, 1u);
  EXPECT_EQ(restored.leases, 1u) << "the other's";
  EXPECT_FALSE(ledger.endings().HasAny());
  EXPECT_FALSE(Opens(other, ticket));
  EXPECT_EQ(StateOf(items[0].segment), SegmentState::kLingering);
  EXPECT_EQ(StateOf(items[5].segment), SegmentState::kLeased);
  ledger.endings().ProcessGone(session);
  EXPECT_EQ(StateOf(items[0].segment), SegmentState::kRetained);
}

}  // namespace
}  // namespace gpumemd
