// SPDX-License-Identifier: Apache-2.0
// Which segments outlive the daemon, which are lost, and which tenant is charged for them.
#include <set>
#include <vector>

#include "daemon/core/ledger/testing/restart_fixture.h"

namespace gpumemd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

using RestoreSegmentsTest = LedgerRestartFixture;

TEST_F(RestoreSegmentsTest, ContextMemoryIsLostAndChargedWhileHeld) {
  const SessionId session = OpenSession("a"), other = OpenSession("b");
  const Operation::Item item = AcquireKind(session, Kind::kIpc);
  const Secret ticket = Share(session, item.lease, TicketScope::kAny);
  const Operation::Item opened = OpenTicket(other, ticket);
  const Operation::Item retained = AcquireKind(session, Kind::kIpc);
  Release(session, {retained});

  const Restored restored = Restart();
  ASSERT_EQ(restored.lost.size(), 1u);  // memory that no session held does not count
  EXPECT_EQ(restored.lost[0].segment, item.segment);
  EXPECT_EQ(restored.lost[0].tenant, "a");
  EXPECT_EQ(restored.lost[0].device_uuid, "GPU-1");
  EXPECT_EQ(restored.lost[0].kind, Kind::kIpc);
  EXPECT_EQ(restored.lost[0].bytes, kGranule);
  EXPECT_THAT(restored.lost[0].sessions, UnorderedElementsAre(session, other));
  EXPECT_FALSE(ledger.state().segments.contains(retained.segment));
  EXPECT_THAT(Drain(ledger.effects().orphaned), ElementsAre(session, other));
  EXPECT_THAT(ledger.look().LostLeases(other), ElementsAre(opened.lease));
  EXPECT_FALSE(Opens(other, ticket));
  EXPECT_EQ(ledger.state().charged(0), kGranule);
  Release(other, {opened});
  EXPECT_EQ(ledger.state().charged(0), kGranule);
  // A lost segment is reported once, but the sessions with leases on it each time.
  EXPECT_THAT(Restart().lost, IsEmpty());
  EXPECT_THAT(Drain(ledger.effects().orphaned), ElementsAre(session));
  Release(session, {item});
  EXPECT_THAT(DestroyDoomed(), ElementsAre(item.segment));
  EXPECT_EQ(ledger.state().charged(0), 0u);
}

TEST_F(RestoreSegmentsTest, PoolMemoryIsChargedWhileAProcessHasThePoolOpen) {
  const SessionId session = OpenSession("a"), other = OpenSession("a"), third = OpenSession("b");
  const Operation::Item idle = AcquireKind(session, Kind::kMempool);
  Release(session, {idle});
  const Operation::Item own = AcquireKind(third, Kind::kMempool);
  const Operation::Item lease = AcquireKind(other, Kind::kMempool);
  ASSERT_EQ(lease.segment, idle.segment) << "it was there for the tenant's next request";
  Release(other, {lease});
  EXPECT_EQ(StateOf(idle.segment), SegmentState::kLingering);

  Restart({.dead = {session, third}});
  EXPECT_FALSE(ledger.state().segments.contains(own.segment)) << "nobody has that pool open";
  EXPECT_EQ(StateOf(idle.segment), SegmentState::kLingering);
  const Operation::Item fresh = AcquireKind(other, Kind::kMempool);
  EXPECT_NE(fresh.segment, idle.segment) << "it is lost";
  ledger.endings().ProcessGone(other);
  EXPECT_THAT(DestroyDoomed(), UnorderedElementsAre(idle.segment, fresh.segment));
}

TEST_F(RestoreSegmentsTest, MissingMemoryIsReportedWithItsTenantAndSessions) {
  const SessionId session = OpenSession("a"), dead = OpenSession("a");
  const Operation::Item item = AcquireOne(session, 2 * kGranule);
  const Operation::Item of_the_dead = AcquireOne(dead, kGranule);
  const Operation::Item retained = AcquireOne(session, kGranule);
  Release(session, {retained});
  const Restored restored =
      Restart({.dead = {dead}, .missing = {item.segment, of_the_dead.segment, retained.segment}});
  ASSERT_EQ(restored.lost.size(), 1u);
  EXPECT_EQ(restored.lost[0].segment, item.segment);
  EXPECT_THAT(restored.lost[0].sessions, ElementsAre(session));
  EXPECT_EQ(restored.segments, 1u);
  EXPECT_THAT(Drain(ledger.effects().orphaned), ElementsAre(session));
  EXPECT_EQ(Usage("a").charged, 2 * kGranule);
  EXPECT_TRUE(ledger.look().ListSegments("a", "")->at(0).lost);
  Restart();  // nor does a later daemon find it again
  EXPECT_TRUE(ledger.look().ListSegments("a", "")->at(0).lost);
}

TEST_F(RestoreSegmentsTest, MemoryOfAMissingDeviceIsLost) {
  const SessionId session = OpenSession("a");
  const Operation::Item gone = AcquireOne(session, kGranule, "GPU-1");
  const Operation::Item kept = AcquireOne(session, kGranule, "GPU-2");
  ASSERT_TRUE(ledger.events().Register(session, {.lease = gone.lease}, "GPU-1", {}).ok());
  const Restored restored = Restart({.gone = {"GPU-1"}});
  ASSERT_EQ(restored.lost.size(), 1u);
  EXPECT_EQ(restored.lost[0].device_uuid, "GPU-1");
  EXPECT_EQ(restored.segments, 1u);
  EXPECT_EQ(ledger.state().charged(0), kGranule);
  EXPECT_EQ(StateOf(kept.segment), SegmentState::kLeased);
  EXPECT_THAT(*ledger.reconciliation().Reconcile(session, {gone.lease, kept.lease}, {}),
              ElementsAre(gone.lease));
}

TEST_F(RestoreSegmentsTest, MemoryThatAnEndingSessionHasLostLeavesItNothing) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 3);
  ledger.endings().SocketClosed(session, /*steps=*/1);
  Record();
  ASSERT_FALSE(image.leases.empty());
  std::set<SegmentId> all;
  for (const Operation::Item& item : items) all.insert(item.segment);
  Restart({.missing = all});
  EXPECT_THAT(Drain(ledger.effects().orphaned), IsEmpty()) << "nobody is there to be told";
  ledger.endings().ProcessGone(session);
  DestroyDoomed();
  EXPECT_EQ(ledger.state().charged(0), 0u);
}

TEST_F(RestoreSegmentsTest, ImportsStayWithTheirSessionIfTheOthersOfItsProcessAreGone) {
  const PeerIdentity peer = {.pid = ++pids, .start_time = 7};
  const SessionId one = *ledger.OpenSession("a", {.peer = peer}, NewSecret());
  const SessionId other = *ledger.OpenSession("a", {.peer = peer}, NewSecret());
  Release(one, {AcquireKind(one, Kind::kMempool)});
  const Operation open = Begin(other, kGranule);
  ledger.endings().ProcessGone(other);  // it stays until its operation ends
  ledger.endings().SocketClosed(one);
  EXPECT_THAT(ledger.state().sessions.at(one)->imported, SizeIs(1));
  EXPECT_THAT(ledger.state().sessions.at(other)->imported, IsEmpty());
  ledger.operations().Abort(open, /*handed_over=*/false);
  ledger.endings().ProcessGone(one);
  DestroyDoomed();
}

TEST_F(RestoreSegmentsTest, PoolOfAMissingDeviceIsForgotten) {
  const SessionId session = OpenSession("a");
  AcquireKind(session, Kind::kMempool);
  Record();
  ASSERT_EQ(image.pool_imports.size(), 1u);
  EXPECT_EQ(Restart({.gone = {"GPU-1"}}).lost.size(), 1u);
  EXPECT_THAT(image.pool_imports, IsEmpty());
  EXPECT_THAT(ledger.state().sessions.at(session)->imported, IsEmpty());
}

TEST_F(RestoreSegmentsTest, SegmentThatWasNeverMadeIsForgotten) {
  const SessionId session = OpenSession("a");
  const Operation operation = Begin(session, kGranule);
  Restart();
  EXPECT_EQ(ledger.state().segments.size(), 0u);
  EXPECT_EQ(ledger.state().charged(0), 0u);
  // The process may now hold either firm or revocable leases.
  EXPECT_TRUE(Ask(session, {.bytes = kGranule, .revocable = true}).ok());
}

TEST_F(RestoreSegmentsTest, SegmentThatWasBeingHandedOverLingers) {
  const SessionId session = OpenSession("a");
  const Operation operation = Begin(session, kGranule);
  Make(operation);
  Restart();
  EXPECT_EQ(StateOf(operation.items[0].segment), SegmentState::kLingering);
  EXPECT_EQ(ledger.look().ListSessions("a")->at(0).leases, 0u);
  EXPECT_THAT(DestroyDoomed(), IsEmpty());
  ledger.endings().ProcessGone(session);
  EXPECT_THAT(DestroyDoomed(), ElementsAre(operation.items[0].segment));
}

TEST_F(RestoreSegmentsTest, SharedSegmentStaysOpenAndIsChargedToItsOwner) {
  const SessionId owner = OpenSession("a"), other = OpenSession("b"), second = OpenSession("a");
  const Operation::Item item = AcquireOne(owner, kGranule);
  const Operation::Item opened = OpenTicket(other, Share(owner, item.lease, TicketScope::kAny));
  Restart({.dead = {owner}});
  EXPECT_EQ(StateOf(item.segment), SegmentState::kLeased);
  EXPECT_EQ(Usage("a").leased, kGranule);
  EXPECT_EQ(Usage("b").charged, 0u);
  // Another tenant has had it, so it is not reused, not even for the next session of its tenant.
  Restart();
  Release(other, {opened});
  EXPECT_EQ(StateOf(item.segment), SegmentState::kReleasing);
  EXPECT_NE(AcquireOne(second, kGranule).segment, item.segment);
  DestroyDoomed();
}

TEST_F(RestoreSegmentsTest, ReleasingSegmentIsRetainedOrForgotten) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 2);
  Release(session, items);
  ASSERT_TRUE(ledger.segments().Trim("", "", 0).ok());
  ASSERT_EQ(Drain(ledger.effects().doomed).size(), 2u);
  Restart({.missing = {items[1].segment}});  // the driver has that one back already
  EXPECT_EQ(StateOf(items[0].segment), SegmentState::kRetained);
  EXPECT_FALSE(ledger.state().segments.contains(items[1].segment));
}

TEST_F(RestoreSegmentsTest, RetainedSegmentsKeepTheirOrder) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> items = Acquire(session, kGranule, 3);
  Release(session, {items[2]});
  Release(session, {items[0], items[1]});
  Restart();
  EXPECT_EQ(Usage("a").retained, 3 * kGranule);
  ASSERT_TRUE(ledger.segments().Trim("a", "GPU-1", 2 * kGranule).ok());
  EXPECT_THAT(DestroyDoomed(), ElementsAre(items[0].segment));
}

}  // namespace
}  // namespace gpumemd
