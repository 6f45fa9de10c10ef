// SPDX-License-Identifier: Apache-2.0
// The ledger's records of each change. Reading them back: restore_test.cc.
#include "daemon/core/ledger/testing/restart_fixture.h"

namespace gpumemd {
namespace {

using testing::IsEmpty;

using LedgerJournalTest = LedgerRestartFixture;

TEST_F(LedgerJournalTest, NoChangesAreKeptUnlessAskedFor) {
  Ledger other({Device("GPU-1", {Kind::kVmm})}, {}, [this] { return now; });
  ASSERT_TRUE(other.OpenSession("a", {}, NewSecret()).ok());
  EXPECT_THAT(other.TakeChanges(), IsEmpty());
  other.KeepChanges();
  ASSERT_TRUE(other.OpenSession("a", {}, NewSecret()).ok());
  EXPECT_EQ(other.TakeChanges().size(), 2u);  // the session, and the number of the one before
  EXPECT_THAT(other.TakeChanges(), IsEmpty());
}

// Checks call by call, since changes of several calls may hide a missing record of one.
TEST_F(LedgerJournalTest, EveryCallRecordsAllThatItChanges) {
  const auto right = [this](absl::string_view call) {
    Record();
    EXPECT_TRUE(image == ledger.Image()) << call;
    const absl::Status consistent = image.CheckReferences();
    EXPECT_TRUE(consistent.ok()) << call << ": " << consistent;
  };
  const SessionId a = OpenSessionOf("a", 42), b = OpenSessionOf("b", 43);
  right("OpenSession");
  const Operation acquired = Begin(a, kGranule, 2);
  right("BeginAcquire");
  ledger.operations().Created(acquired.items[0].segment);
  right("Created");
  Finish(acquired);
  right("Commit");
  const Secret ticket = Share(a, acquired.items[0].lease, TicketScope::kAny);
  right("Share");
  const Operation opened = ledger.operations().BeginOpen(b, {ticket}).value();
  right("BeginOpen");
  Finish(opened);
  const IpcEventId event =
      *ledger.events().Register(a, {.lease = acquired.items[0].lease}, "GPU-1", {});
  right("RegisterEvent");
  ASSERT_TRUE(ledger.events().Find(b, {.lease = opened.items[0].lease}).ok());
  right("GetEvents");
  ledger.operations().Abort(ledger.operations().BeginOpen(b, {ticket}).value(),
                            /*handed_over=*/false);
  right("Abort");
  Release(a, {acquired.items[0]});  // the event is beside no lease now
  right("Release");
  ASSERT_TRUE(ledger.events().Unregister(a, event).ok());
  right("UnregisterEvent");
  Release(a, {acquired.items[1]});
  right("Release of the last");
  const Operation again = AcquireAs(a, {.bytes = kGranule, .revocable = true});
  ASSERT_EQ(again.items[0].segment, acquired.items[1].segment);
  right("Acquire of what was retained, as of another lease type");
  Release(a, again.items);
  const Operation::Item lost = AcquireKind(a, Kind::kIpc);
  right("Acquire");
  ledger.segments().MarkLost({lost.segment});
  right("MarkLost");
  ledger.operations().Abort(Ask(a, {.bytes = kGranule, .kind = Kind::kMempool}).value().value(),
                            /*handed_over=*/false);
  right("Abort in a pool");
  AcquireKind(a, Kind::kMempool);
  right("Acquire in a pool");
  const SessionId second = OpenSessionOf("a", 42);
  ASSERT_TRUE(ledger.events().Register(a, {.name = "x"}, "GPU-1", {}).ok());
  right("RegisterEvent by name");
  Release(a, {lost});
  ledger.endings().SocketClosed(a);
  right("SocketClosed");
  const SessionId third = OpenSessionOf("a", 42);
  Release(third, {AcquireKind(third, Kind::kMempool)});
  right("Release into a pool");
  ledger.endings().SocketClosed(third);  // its pool import is the first one's now
  right("SocketClosed of an importer");
  EXPECT_FALSE(image.sessions.contains(third));
  const SessionId idle = OpenSession("a");
  right("OpenSession of one that asks for nothing");
  ASSERT_TRUE(ledger.sessions().BeginCall(idle).ok());
  ledger.endings().SocketClosed(idle);
  right("SocketClosed during a call");
  ledger.sessions().EndCall(idle);
  right("EndCall of the last");
  EXPECT_FALSE(image.sessions.contains(idle));
  ledger.endings().ProcessGone(b);
  right("ProcessGone");
  ledger.endings().ProcessGone(a);
  right("ProcessGone of an importer");
  ledger.endings().ProcessGone(second);
  right("ProcessGone of the last");
  DestroyDoomed();
  right("Destroyed");
  EXPECT_EQ(image.size(), 1u) << "only its counters are left";
}

TEST_F(LedgerJournalTest, NoNumberIsGivenOutTwice) {
  const SessionId session = OpenSession("a");
  const Operation begun = Begin(session, kGranule, 2);  // its leases are never committed
  const SessionId gone = OpenSession("a");
  ledger.endings().ProcessGone(gone);
  const IpcEventId event = *ledger.events().Register(session, {.name = "x"}, "GPU-1", {});
  ASSERT_TRUE(ledger.events().Unregister(session, event).ok());
  Restart();
  EXPECT_GT(OpenSession("a"), gone);
  const Operation::Item item = AcquireOne(session, kGranule);
  EXPECT_GT(item.lease, begun.items[1].lease);
  EXPECT_GT(item.segment, begun.items[1].segment);
  EXPECT_GT(*ledger.events().Register(session, {.name = "x"}, "GPU-1", {}), event);
}

}  // namespace
}  // namespace gpumemd
