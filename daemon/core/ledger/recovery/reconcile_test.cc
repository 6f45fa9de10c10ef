// SPDX-License-Identifier: Apache-2.0
// Sessions that come back after the daemon's end: which leases they are granted once more, and
// which end.
#include "daemon/core/ledger/testing/restart_fixture.h"

namespace gpumemd {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::IsEmpty;

class LedgerReconcileTest : public LedgerRestartFixture {
 protected:
  // Acquires by one request, and commits.
  std::vector<Operation::Item> AcquireBy(SessionId session, uint64_t request, uint32_t count) {
    return AcquireAs(session, {.bytes = kGranule, .count = count, .request_id = request}).items;
  }
  static std::vector<LeaseId> Leases(const std::vector<Operation::Item>& items) {
    std::vector<LeaseId> leases;
    for (const Operation::Item& item : items) leases.push_back(item.lease);
    return leases;
  }
  // Expects the state that an operation leaves unchanged if it hands leases over once more.
  void ExpectUnchanged() {
    Record();
    EXPECT_TRUE(image == before_);
  }
  void Remember() {
    Record();
    before_ = image;
  }

 private:
  JournalImage before_;
};

TEST_F(LedgerReconcileTest, ARequestIsGrantedOnceMoreAndOnlyOnce) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> items = AcquireBy(session, 5, 3);
  AcquireBy(session, 6, 1);
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 5, 3))
      << "by the daemon that has granted it";
  Restart();
  Remember();
  const std::optional<Operation> again = ledger.reconciliation().Regrant(session, 5, 3);
  ASSERT_TRUE(again.has_value());
  EXPECT_TRUE(again->regrant);
  EXPECT_EQ(again->session, session);
  EXPECT_EQ(again->request_id, 5u);
  EXPECT_EQ(again->kind, Kind::kVmm);
  ASSERT_EQ(again->items.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(again->items[i].lease, items[i].lease);
    EXPECT_EQ(again->items[i].segment, items[i].segment);
    EXPECT_FALSE(again->items[i].fresh);
  }
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 5, 3));
  EXPECT_TRUE(ledger.operations().Commit(*again).ok());
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 5, 3));
  ExpectUnchanged();
  // The answer may be lost with this daemon, too.
  Restart();
  EXPECT_TRUE(ledger.reconciliation().Regrant(session, 5, 3).has_value());
}

TEST_F(LedgerReconcileTest, AbortLeavesTheLeasesAsTheyAre) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> items = AcquireBy(session, 5, 2);
  Restart();
  Remember();
  for (bool handed_over : {false, true}) {
    const std::optional<Operation> again = ledger.reconciliation().Regrant(session, 5, 2);
    ASSERT_TRUE(again.has_value());
    ledger.operations().Abort(*again, handed_over);
    ExpectUnchanged();
    EXPECT_EQ(StateOf(items[0].segment), SegmentState::kLeased);
    Restart();
  }
}

TEST_F(LedgerReconcileTest, AnAbortedRequestIsGrantedOnceMoreAgainOrGivenUp) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> items = AcquireBy(session, 5, 2);
  Restart();
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::optional<Operation> again = ledger.reconciliation().Regrant(session, 5, 2);
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(Leases(again->items), Leases(items));
    ledger.operations().Abort(*again, /*handed_over=*/false);
  }
  ledger.reconciliation().DropRegrants(session, {5});
  EXPECT_EQ(ledger.look().ListSessions("a")->at(0).leases, 0u);
}

TEST_F(LedgerReconcileTest, OpenedLeasesAreGrantedOnceMoreAsFirmOrRevocable) {
  const SessionId owner = OpenSession("a"), session = OpenSession("b");
  const Secret ticket = Share(owner, AcquireOne(owner, kGranule).lease, TicketScope::kAny);
  const auto opened =
      ledger.operations().BeginOpen(session, {ticket}, /*revocable=*/true, /*request_id=*/8);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->request_id, 8u);
  Finish(*opened);
  Restart();
  const std::optional<Operation> again = ledger.reconciliation().Regrant(session, 8, 1);
  ASSERT_TRUE(again.has_value());
  EXPECT_TRUE(again->revocable) << "the lease is, though the segment is not";
  EXPECT_TRUE(ledger.operations().Commit(*again).ok());
}

TEST_F(LedgerReconcileTest, ARequestThatWasServedAfterAWaitIsGrantedOnceMore) {
  const SessionId holder = OpenSession("a"), session = OpenSession("a");
  const Operation::Item item = AcquireOne(holder, kCapacity);
  ASSERT_TRUE(ledger.sessions().BeginCall(session).ok());
  const auto waits = ledger.admission().BeginAcquire(
      session, {.bytes = kCapacity, .waits = true, .request_id = 4});
  ASSERT_TRUE(waits.ok() && waits->waiter);
  Release(holder, {item});
  const std::vector<AdmissionControl::Admitted> admitted = ledger.admission().AdmitWaiting();
  ASSERT_EQ(admitted.size(), 1u);
  Finish(admitted[0].operation.value());
  Restart();
  EXPECT_TRUE(ledger.reconciliation().Regrant(session, 4, 1).has_value());
}

TEST_F(LedgerReconcileTest, LeasesOfADifferentRequestEnd) {
  const SessionId session = OpenSession("a");
  AcquireBy(session, 5, 2);
  const Operation::Item released = AcquireBy(session, 6, 1).at(0);
  AcquireBy(session, 7, 2);
  AcquireAs(session, {.bytes = kGranule, .kind = Kind::kIpc, .request_id = 8});
  AcquireBy(session, 0, 1);  // requests without a number cannot be repeated
  Restart();
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 5, 3)) << "another count";
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 5, 2)) << "their leases have ended";
  Release(session, {released});
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 6, 0))
      << "it was released, and nothing is handed over";
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 6, 1));
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 8, 1)) << "it is lost";
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 0, 1));
  EXPECT_FALSE(ledger.reconciliation().Regrant(OpenSession("a"), 7, 2)) << "another session's";
  EXPECT_EQ(ledger.look().ListSessions("a")->at(0).leases, 3u);
  EXPECT_TRUE(ledger.reconciliation().Regrant(session, 7, 2).has_value());
}

TEST_F(LedgerReconcileTest, APartThatWasReleasedMeanwhileEndsTheRest) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> items = AcquireBy(session, 5, 2);
  Restart();
  Release(session, {items[0]});
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 5, 2));
  EXPECT_EQ(ledger.look().ListSessions("a")->at(0).leases, 0u);
}

TEST_F(LedgerReconcileTest, AReleaseWhileItIsHandedOverEndsTheLeaseAndNotTheHandingOver) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> items = AcquireBy(session, 5, 2);
  Restart();
  const std::optional<Operation> again = ledger.reconciliation().Regrant(session, 5, 2);
  ASSERT_TRUE(again.has_value());
  Release(session, {items[0]});
  EXPECT_EQ(StateOf(items[0].segment), SegmentState::kPending);
  EXPECT_TRUE(ledger.operations().Commit(*again).ok());
  EXPECT_EQ(StateOf(items[0].segment), SegmentState::kRetained);
  EXPECT_EQ(StateOf(items[1].segment), SegmentState::kLeased);
  EXPECT_EQ(ledger.look().ListSessions("a")->at(0).leases, 1u);
}

TEST_F(LedgerReconcileTest, ASessionThatEndsWhileItIsHandedOverIsToldSo) {
  const SessionId session = OpenSession("a");
  const Operation::Item item = AcquireBy(session, 5, 1).at(0);
  Restart();
  const std::optional<Operation> again = ledger.reconciliation().Regrant(session, 5, 1);
  ASSERT_TRUE(again.has_value());
  ledger.endings().ProcessGone(session);
  EXPECT_EQ(StateOf(item.segment), SegmentState::kPending);
  EXPECT_EQ(ledger.operations().Commit(*again).code(), StatusCode::kAborted);
  EXPECT_THAT(DestroyDoomed(), ElementsAre(item.segment));
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 5, 1));
}

TEST_F(LedgerReconcileTest, ASessionIsAwayUntilItsProcessHasComeBackForIt) {
  const SessionId session = OpenSessionOf("a", 42), other = OpenSessionOf("a", 43);
  const PeerIdentity peer = {.pid = 42, .start_time = 7};
  const auto presence = [&] { return ledger.look().ListSessions("a")->at(0).presence; };
  EXPECT_EQ(presence(), Presence::kHere);
  EXPECT_TRUE(ledger.sessions().Resume(session, peer).ok())
      << "its client may have lost its connection";
  Restart();
  EXPECT_EQ(presence(), Presence::kAway);
  // Another process is refused, also one with the same pid.
  EXPECT_EQ(ledger.sessions().Resume(other, peer).code(), StatusCode::kNotFound);
  EXPECT_EQ(ledger.sessions().Resume(session, {.pid = 42, .start_time = 8}).code(),
            StatusCode::kNotFound);
  EXPECT_EQ(ledger.sessions().Resume(SessionId{99}, peer).code(), StatusCode::kNotFound);
  EXPECT_TRUE(ledger.sessions().Resume(session, peer).ok());
  EXPECT_EQ(presence(), Presence::kReturning);
  EXPECT_TRUE(ledger.sessions().Resume(session, peer).ok()) << "that connection may be lost, too";
  EXPECT_TRUE(ledger.reconciliation().Reconcile(session, {}, {}).ok());
  EXPECT_EQ(presence(), Presence::kHere);
  // A session that comes back and loses its connection again has ended.
  Restart();
  ledger.endings().SocketClosed(session);
  EXPECT_EQ(ledger.sessions().Resume(session, peer).code(), StatusCode::kNotFound);
}

TEST_F(LedgerReconcileTest, LeasesOfUnnamedRequestsEnd) {
  Configure({{"strict", {.release = ReleasePolicy::kOnExit}}});
  const SessionId session = OpenSession("a"), strict = OpenSession("strict");
  const std::vector<Operation::Item> items = AcquireBy(session, 5, 2);
  const std::vector<Operation::Item> kept = AcquireBy(session, 6, 1);
  const std::vector<Operation::Item> lingers = AcquireBy(strict, 5, 1);
  ledger.reconciliation().DropRegrants(session,
                                       {5});  // has no effect in the daemon that granted it
  EXPECT_EQ(StateOf(items[0].segment), SegmentState::kLeased);
  Restart();
  Release(session, {items[1]});
  ledger.reconciliation().DropRegrants(session, {5, 9});
  ledger.reconciliation().DropRegrants(strict, {5});
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 5, 2));
  EXPECT_EQ(StateOf(items[0].segment), SegmentState::kRetained);
  EXPECT_EQ(StateOf(lingers[0].segment), SegmentState::kLingering);
  EXPECT_EQ(StateOf(kept[0].segment), SegmentState::kLeased);
}

TEST_F(LedgerReconcileTest, RequestsAreGivenUpInParts) {
  const SessionId session = OpenSession("a");
  AcquireBy(session, 5, 3);
  AcquireBy(session, 6, 1);
  Restart();
  const auto leases = [&] { return ledger.look().ListSessions("a")->at(0).leases; };
  Reconciliation& reconciliation = ledger.reconciliation();
  EXPECT_EQ(reconciliation.DropRegrants(session, {5, 9, 6}, /*steps=*/2), 0u);
  EXPECT_EQ(leases(), 2u) << "one of the first request, and one of the last";
  EXPECT_EQ(reconciliation.DropRegrants(session, {5, 9, 6}, /*steps=*/1), 1u);
  EXPECT_EQ(leases(), 1u);
  EXPECT_EQ(reconciliation.DropRegrants(session, {9, 6}, /*steps=*/2), 2u);
  EXPECT_EQ(leases(), 0u);
}

TEST_F(LedgerReconcileTest, UnknownLeasesAreNamedAndUnnamedOnesEnd) {
  const SessionId session = OpenSession("a"), other = OpenSession("a");
  const Operation::Item kept = AcquireOne(session, kGranule), ended = AcquireOne(session, kGranule);
  const Operation::Item others = AcquireOne(other, kGranule);
  Restart();
  const auto unknown =
      ledger.reconciliation().Reconcile(session, {kept.lease, others.lease, LeaseId{77}}, {});
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_THAT(*unknown, ElementsAre(others.lease, LeaseId{77}));
  EXPECT_EQ(StateOf(kept.segment), SegmentState::kLeased);
  EXPECT_EQ(StateOf(ended.segment), SegmentState::kRetained);
  EXPECT_EQ(StateOf(others.segment), SegmentState::kLeased);
  ledger.endings().SocketClosed(session);
  EXPECT_EQ(ledger.reconciliation().Reconcile(session, {}, {}).status().code(),
            StatusCode::kAborted);
  EXPECT_EQ(ledger.reconciliation().Begin(session).code(), StatusCode::kAborted);
}

TEST_F(LedgerReconcileTest, LeasesOfNamedRequestsStayAndNoOthers) {
  const SessionId session = OpenSession("a");
  const std::vector<Operation::Item> asked = AcquireBy(session, 5, 2);
  const std::vector<Operation::Item> dropped = AcquireBy(session, 6, 1);
  const std::vector<Operation::Item> had = AcquireBy(session, 7, 1);
  const std::vector<Operation::Item> nameless = AcquireBy(session, 0, 1);
  Restart();
  EXPECT_THAT(*ledger.reconciliation().Reconcile(session, Leases(had), {0, 5}), IsEmpty());
  EXPECT_EQ(StateOf(asked[0].segment), SegmentState::kLeased);
  EXPECT_EQ(StateOf(had[0].segment), SegmentState::kLeased);
  EXPECT_EQ(StateOf(dropped[0].segment), SegmentState::kRetained);
  EXPECT_EQ(StateOf(nameless[0].segment), SegmentState::kRetained) << "0 is no request";
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 6, 1));
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 7, 1)) << "it has that already";
  EXPECT_TRUE(ledger.reconciliation().Regrant(session, 5, 2).has_value());
}

TEST_F(LedgerReconcileTest, SegmentsThatNeverArrivedAreGivenUpIfClientsAreTrusted) {
  Configure({{"strict", {.release = ReleasePolicy::kOnExit}}});
  const SessionId session = OpenSession("a"), strict = OpenSession("strict");
  const Operation arriving = Begin(session, kGranule), held_back = Begin(strict, kGranule);
  Make(arriving);
  Make(held_back);
  const Operation::Item twice = AcquireOne(session, kGranule);
  const Secret ticket = Share(session, twice.lease);
  ASSERT_TRUE(
      ledger.operations().BeginOpen(session, {ticket}).ok());  // once more, and not committed
  // Memory of a tenant that trusts no session's releases.
  const Operation::Item foreign = AcquireOne(strict, kGranule);
  ASSERT_TRUE(ledger.operations()
                  .BeginOpen(session, {Share(strict, foreign.lease, TicketScope::kAny)})
                  .ok());
  // Another tenant's memory, handed to a tenant whose releases are not trusted.
  const Secret for_all = Share(session, twice.lease, TicketScope::kAny);
  ASSERT_TRUE(ledger.operations().BeginOpen(strict, {for_all}).ok());
  Restart();
  EXPECT_EQ(StateOf(arriving.items[0].segment), SegmentState::kLingering);
  EXPECT_THAT(*ledger.reconciliation().Reconcile(session, {twice.lease}, {}), IsEmpty());
  EXPECT_THAT(*ledger.reconciliation().Reconcile(strict, {}, {}), IsEmpty());
  EXPECT_EQ(StateOf(arriving.items[0].segment), SegmentState::kRetained);
  EXPECT_EQ(StateOf(held_back.items[0].segment), SegmentState::kLingering);
  Record();
  EXPECT_EQ(image.exposures.at({session, twice.segment}).count, 1u);
  EXPECT_TRUE(image.exposures.contains({session, foreign.segment}));
  EXPECT_TRUE(image.exposures.contains({strict, twice.segment}));
  Release(session, {twice});
  EXPECT_EQ(StateOf(twice.segment), SegmentState::kLingering);
  ledger.endings().ProcessGone(strict);
  EXPECT_EQ(StateOf(held_back.items[0].segment), SegmentState::kReleasing);
  EXPECT_EQ(StateOf(foreign.segment), SegmentState::kLingering) << "the other may map it";
  DestroyDoomed();
}

TEST_F(LedgerReconcileTest, LeasesThatAreGrantedBetweenItsPartsKeepTheirMappings) {
  const SessionId session = OpenSession("a");
  const Operation::Item kept = AcquireOne(session, kGranule);
  Restart();
  Reconciliation::Statement statement({kept.lease}, {1, 2, 3});
  // The leases are passed, and the first of the requests.
  ASSERT_FALSE(ledger.reconciliation().Reconcile(session, statement, /*steps=*/3).value());
  const std::vector<Operation::Item> granted = AcquireBy(session, 9, 2);
  while (!ledger.reconciliation().Reconcile(session, statement, /*steps=*/1).value()) {
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  }
  EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  Record();
  EXPECT_EQ(image.exposures.at({session, kept.segment}).count, 1u);
  for (const Operation::Item& item : granted) {
    EXPECT_TRUE(image.exposures.contains({session, item.segment}));
  }
  ASSERT_TRUE(ledger.reconciliation().Reconcile(session, {}, {9}).ok());
  const std::optional<Operation> again = ledger.reconciliation().Regrant(session, 9, 2);
  ASSERT_TRUE(again.has_value());
  EXPECT_TRUE(ledger.operations().Commit(*again).ok());
}

TEST_F(LedgerReconcileTest, PendingOperationKeepsSegmentsThatDidNotArrive) {
  const SessionId session = OpenSession("a");
  AcquireBy(session, 5, 1);
  const Operation arriving = Begin(session, kGranule);
  Make(arriving);
  Restart();
  const std::optional<Operation> again = ledger.reconciliation().Regrant(session, 5, 1);
  ASSERT_TRUE(again.has_value());
  ASSERT_TRUE(ledger.reconciliation().Reconcile(session, {}, {5}).ok());
  EXPECT_EQ(StateOf(arriving.items[0].segment), SegmentState::kLingering);
  EXPECT_TRUE(ledger.operations().Commit(*again).ok());
}

}  // namespace
}  // namespace gpumemd
