// SPDX-License-Identifier: Apache-2.0
// Revocable leases, and how they are taken back.
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/ledger/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LedgerRevocationTest : public LedgerFixture {
 protected:
  LedgerRevocationTest() {
    ledger.revocations().SetTimes({.grace = absl::Seconds(10), .kill_after = absl::Seconds(5)});
    ledger.tenants().Configure({{"owner", {.guarantee_bytes = 512 * kGranule}},
                                {"low", {.priority = -1}},
                                {"high", {.priority = 1}},
                                {"scavenger", {.revocable = true}}},
                               {});
  }
  static AcquireSpec Of(uint64_t granules, bool revocable = false) {
    return {.device_uuid = "GPU-1", .bytes = granules * kGranule, .revocable = revocable};
  }
  SessionId Open(absl::string_view tenant) {
    const SessionId session = OpenSession(tenant);
    EXPECT_TRUE(ledger.sessions().BeginCall(session).ok());
    return session;
  }
  LeaseId Lease(SessionId session, uint64_t granules, bool revocable) {
    const absl::StatusOr<Admission> admission =
        ledger.admission().BeginAcquire(session, Of(granules, revocable));
    EXPECT_TRUE(admission.ok()) << admission.status();
    EXPECT_TRUE(admission.ok() && admission->operation) << "it waits";
    if (!admission.ok() || !admission->operation) return {};
    EXPECT_TRUE(ledger.operations().Commit(*admission->operation).ok());
    return admission->operation->items[0].lease;
  }
  WaiterId WaitFor(SessionId session, uint64_t granules) {
    const absl::StatusOr<Admission> admission =
        ledger.admission().BeginAcquire(session, Of(granules));
    EXPECT_TRUE(admission.ok()) << admission.status();
    EXPECT_TRUE(admission.ok() && admission->waiter) << "granted";
    return admission.ok() ? admission->waiter.value_or(WaiterId{}) : WaiterId{};
  }
  bool IsAdmitted(WaiterId waiter) {
    for (int i = 0; i < 2; ++i) {
      for (const AdmissionControl::Admitted& each : ledger.admission().AdmitWaiting()) {
        EXPECT_TRUE(each.operation.ok()) << each.operation.status();
        if (!each.operation.ok() || each.waiter != waiter) continue;
        EXPECT_TRUE(ledger.operations().Commit(*each.operation).ok());
        return true;
      }
      DestroyDoomed();
    }
    return false;
  }
  std::vector<std::pair<SessionId, bool>> Overdue() {
    std::vector<std::pair<SessionId, bool>> overdue;
    for (const auto& each : ledger.revocations().TakeOverdue())
      overdue.emplace_back(each.session, each.kill);
    return overdue;
  }
};

TEST_F(LedgerRevocationTest, RevocableLeasesUseIdleGuarantees) {
  const SessionId b = Open("b");
  Lease(b, 1024, true);
  EXPECT_EQ(Usage("b").revocable, kCapacity);
  ExpectDenial(ledger.admission().BeginAcquire(Open("c"), Of(1, true)).status(),
               Denial::Cause::kCapacity, "c", "GPU-1", kGranule, kCapacity, kCapacity);
}

TEST_F(LedgerRevocationTest, MemoryReleasedInTimeEndsNoProcess) {
  const SessionId b = Open("b"), owner = Open("owner");
  const LeaseId first = Lease(b, 600, true), second = Lease(b, 424, true);
  const WaiterId waiter = WaitFor(owner, 300);
  EXPECT_TRUE(ledger.state().waiters.at(waiter).revokes);
  // The newest segment is enough.
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(b));
  EXPECT_THAT(Drain(ledger.effects().revoked), IsEmpty());
  EXPECT_THAT(ledger.look().RevokedLeases(b).leases, ElementsAre(second));
  EXPECT_EQ(ledger.look().RevokedLeases(b).until, now + absl::Seconds(10));
  EXPECT_EQ(ledger.revocations().NextOverdue(), now + absl::Seconds(10));
  EXPECT_FALSE(IsAdmitted(waiter));
  now += absl::Seconds(9);
  EXPECT_THAT(Overdue(), IsEmpty());
  ASSERT_TRUE(ledger.leases().Release(b, {second}).ok());
  EXPECT_TRUE(IsAdmitted(waiter));
  now += absl::Seconds(60);
  EXPECT_THAT(Overdue(), IsEmpty());
  EXPECT_EQ(ledger.revocations().NextOverdue(), absl::InfiniteFuture());
  EXPECT_TRUE(ledger.leases().Release(b, {first}).ok()) << "the other lease was left alone";
}

TEST_F(LedgerRevocationTest, ProcessThatKeepsRevokedMemoryIsAskedToEndAndThenKilled) {
  const SessionId b = Open("b"), owner = Open("owner");
  Lease(b, 1024, true);
  const WaiterId waiter = WaitFor(owner, 512);
  now += absl::Seconds(10);
  EXPECT_THAT(Overdue(), ElementsAre(std::pair(b, false)));
  EXPECT_THAT(Overdue(), IsEmpty());
  EXPECT_EQ(ledger.revocations().NextOverdue(), now + absl::Seconds(5));
  now += absl::Seconds(5);
  EXPECT_THAT(Overdue(), ElementsAre(std::pair(b, true)));
  EXPECT_THAT(Overdue(), IsEmpty());
  EXPECT_FALSE(IsAdmitted(waiter)) << "its process is not gone yet";
  ledger.endings().SocketClosed(b);
  EXPECT_FALSE(IsAdmitted(waiter)) << "its process may still map it";
  ledger.endings().ProcessGone(b);
  EXPECT_TRUE(IsAdmitted(waiter));
}

// The daemon ends a session in parts.
TEST_F(LedgerRevocationTest, ProcessThatHasGoneIsNotAskedToEnd) {
  const SessionId b = Open("b");
  Lease(b, 512, true);
  Lease(b, 512, true);
  WaitFor(Open("owner"), 512);
  ledger.endings().ProcessGone(b, /*steps=*/1);
  ASSERT_EQ(ledger.state().sessions.at(b)->exposed.size(), 2u);
  now += absl::Seconds(10);
  EXPECT_THAT(Overdue(), IsEmpty());
}

TEST_F(LedgerRevocationTest, ProcessAskedToEndLateHasItsFullTime) {
  const SessionId b = Open("b");
  Lease(b, 1024, true);
  WaitFor(Open("owner"), 512);
  now += absl::Hours(1);  // as if the daemon was stopped meanwhile
  EXPECT_THAT(Overdue(), ElementsAre(std::pair(b, false)));
  EXPECT_THAT(Overdue(), IsEmpty());
  now += absl::Seconds(5);
  EXPECT_THAT(Overdue(), ElementsAre(std::pair(b, true)));
}

TEST_F(LedgerRevocationTest, AnotherProcessIsAskedIfOneDoesNotEnd) {
  const SessionId stuck = Open("b"), other = Open("b"), owner = Open("owner");
  const LeaseId kept = Lease(other, 512, true);
  Lease(stuck, 512, true);
  const WaiterId waiter = WaitFor(owner, 400);
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(stuck));
  for (const absl::Duration pause : {absl::Seconds(10), absl::Seconds(5), absl::Seconds(5)}) {
    now += pause;
    Overdue();
  }
  EXPECT_FALSE(IsAdmitted(waiter));
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(other));
  ASSERT_TRUE(ledger.leases().Release(other, {kept}).ok());
  EXPECT_TRUE(IsAdmitted(waiter));
}

TEST_F(LedgerRevocationTest, NoProcessIsEndedIfOtherMemorySuffices) {
  const SessionId one = Open("b"), two = Open("b"), owner = Open("owner");
  Lease(one, 512, true);
  Lease(two, 512, true);
  const WaiterId first = WaitFor(owner, 256), second = WaitFor(owner, 256);
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(two));
  const WaiterId third = WaitFor(Open("high"), 512);
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(one));
  EXPECT_FALSE(ledger.admission().EndWait(third, /*expired=*/false).ok());
  now += absl::Seconds(10);
  EXPECT_THAT(Overdue(), ElementsAre(std::pair(two, false)));
  ledger.endings().ProcessGone(two);
  EXPECT_TRUE(IsAdmitted(first));
  EXPECT_TRUE(Usage("owner").leased >= 256 * kGranule);
  (void)second;
}

TEST_F(LedgerRevocationTest, ProcessThatCouldNotBeEndedGetsNoRevocableLease) {
  SessionDetails details;
  details.peer.pid = 77;
  details.certain = false;
  const SessionId session = *ledger.OpenSession("b", details, NewSecret());
  EXPECT_TRUE(absl::IsFailedPrecondition(Ask(session, Of(1, true)).status()));
  EXPECT_TRUE(Ask(session, Of(1, false)).ok());
}

TEST_F(LedgerRevocationTest, FirmLeaseIsNeverRevoked) {
  const SessionId b = Open("b"), owner = Open("owner");
  Lease(b, 512, false);
  const SessionId c = Open("c");
  Lease(c, 512, true);
  const WaiterId waiter = WaitFor(owner, 512);
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(c));
  now += absl::Seconds(100);
  EXPECT_THAT(Overdue(), ElementsAre(std::pair(c, false)));
  now += absl::Seconds(100);
  EXPECT_THAT(Overdue(), ElementsAre(std::pair(c, true)));
  ledger.endings().ProcessGone(c);
  EXPECT_TRUE(IsAdmitted(waiter));
  EXPECT_EQ(Usage("b").leased, 512 * kGranule);
}

TEST_F(LedgerRevocationTest, ProcessHoldsEitherFirmOrRevocableLeases) {
  const SessionId b = Open("b");
  const LeaseId firm = Lease(b, 1, false);
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger.admission().BeginAcquire(b, Of(1, true)).status()));
  ASSERT_TRUE(ledger.leases().Release(b, {firm}).ok());
  const LeaseId revocable = Lease(b, 1, true);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(ledger.admission().BeginAcquire(b, Of(1, false)).status()));

  // A revocable segment cannot be opened by a firm lease, nor as revocable by a process that holds
  // firm leases.
  const SessionId other = Open("b");
  const Secret of_revocable = Share(b, revocable);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(ledger.operations().BeginOpen(other, {of_revocable}).status()));
  const LeaseId firm_again = Lease(other, 1, false);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      ledger.operations().BeginOpen(other, {of_revocable}, /*revocable=*/true).status()));
  const Secret of_firm = Share(other, firm_again);
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger.operations().BeginOpen(b, {of_firm}).status()));
  const auto opened = ledger.operations().BeginOpen(b, {of_firm}, /*revocable=*/true);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(ledger.operations().Commit(*opened).ok());
  EXPECT_EQ(Usage("b").revocable, kGranule) << "the segment itself is firm";
}

TEST_F(LedgerRevocationTest, AllSessionsOfAProcessAreFirmOrAllRevocable) {
  SessionDetails details;
  details.peer.pid = 77;
  details.peer.start_time = 5;
  const SessionId first = *ledger.OpenSession("b", details, NewSecret());
  const SessionId second = *ledger.OpenSession("b", details, NewSecret());
  Acquire(first, kGranule);
  EXPECT_TRUE(absl::IsFailedPrecondition(Ask(second, Of(1, true)).status()));
  details.peer.start_time = 6;  // another process by now
  const SessionId third = *ledger.OpenSession("b", details, NewSecret());
  EXPECT_TRUE(Ask(third, Of(1, true)).ok());
}

TEST_F(LedgerRevocationTest, LowestPriorityIsRevokedFirstThenTheNewest) {
  const SessionId b = Open("b"), low = Open("low"), owner = Open("owner");
  const LeaseId oldest = Lease(low, 200, true);
  const LeaseId older = Lease(low, 200, true);
  Lease(b, 624, true);
  WaitFor(owner, 100);
  EXPECT_THAT(ledger.look().RevokedLeases(low).leases, ElementsAre(older));
  EXPECT_THAT(ledger.look().RevokedLeases(b).leases, IsEmpty());
  WaitFor(owner, 200);
  EXPECT_THAT(ledger.look().RevokedLeases(low).leases, ElementsAre(oldest, older));
  EXPECT_THAT(ledger.look().RevokedLeases(b).leases, IsEmpty());
}

TEST_F(LedgerRevocationTest, AtATotalLimitTheNewestSegmentOfAnyDeviceIsRevokedFirst) {
  ledger.tenants().Configure({{"team", {.total_limit_bytes = 1024 * kGranule}},
                              {"a", {.guarantee_bytes = 256 * kGranule, .parent = "team"}},
                              {"b", {.parent = "team"}}},
                             {});
  const SessionId b = Open("b");
  Lease(b, 512, true);
  const auto newest = Ask(b, {.device_uuid = "GPU-2", .bytes = 512 * kGranule, .revocable = true});
  ASSERT_TRUE(Granted(newest)) << newest.status();
  Finish(**newest);
  WaitFor(Open("a"), 256);
  EXPECT_THAT(ledger.look().RevokedLeases(b).leases, ElementsAre((*newest)->items[0].lease));
}

TEST_F(LedgerRevocationTest, AWaiterOfARaisedPriorityIsToldThatMemoryIsTakenBackForIt) {
  const SessionId b = Open("b"), other = Open("other");
  Lease(b, 1024, true);
  AcquireSpec spec = Of(512);
  spec.waits = true;
  const auto waits = ledger.admission().BeginAcquire(other, spec);
  ASSERT_TRUE(waits.ok() && waits->waiter) << waits.status();
  EXPECT_TRUE(ledger.admission().IsBlocked(*waits->waiter));
  SetQuota("other", {.priority = 1});
  const auto waiting = ledger.admission().ListWaiting("other", "");
  ASSERT_TRUE(waiting.ok()) << waiting.status();
  ASSERT_THAT(*waiting, SizeIs(1));
  EXPECT_THAT(waiting->at(0).blocked_by.help,
              HasSubstr("revocable leases are being taken back for this request"));
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(b));
}

TEST_F(LedgerRevocationTest, BorrowersRevokeFromLowerPrioritiesOnly) {
  const SessionId middle = Open("b"), high = Open("high"), low = Open("low");
  Lease(middle, 1024, true);
  ExpectDenial(ledger.admission().BeginAcquire(low, Of(1)).status(), Denial::Cause::kCapacity,
               "low", "GPU-1", kGranule, kCapacity, kCapacity);
  EXPECT_THAT(Drain(ledger.effects().revoked), IsEmpty());
  const WaiterId waiter = WaitFor(high, 512);
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(middle));
  // More would take memory that is guaranteed to others.
  const auto more = ledger.admission().BeginAcquire(high, Of(1));
  EXPECT_EQ(DenialOf(more.status())->cause, Denial::Cause::kQueue) << more.status();
  ledger.endings().ProcessGone(middle);
  EXPECT_TRUE(IsAdmitted(waiter));
}

TEST_F(LedgerRevocationTest, RevocationLapsesWithoutAWaiter) {
  const SessionId b = Open("b"), owner = Open("owner");
  const LeaseId lease = Lease(b, 1024, true);
  const WaiterId waiter = WaitFor(owner, 512);
  const Secret ticket = Share(b, lease);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      ledger.operations().BeginOpen(Open("b"), {ticket}, /*revocable=*/true).status()))
      << "it is being taken back";
  EXPECT_FALSE(ledger.admission().EndWait(waiter, /*expired=*/false).ok());
  now += absl::Seconds(11);
  EXPECT_THAT(Overdue(), IsEmpty());
  EXPECT_THAT(ledger.look().RevokedLeases(b).leases, IsEmpty());
  EXPECT_TRUE(ledger.operations().BeginOpen(Open("b"), {ticket}, /*revocable=*/true).ok());
}

TEST_F(LedgerRevocationTest, AllHoldersOfASharedSegmentAreTold) {
  const SessionId b = Open("b"), other = Open("b"), owner = Open("owner");
  const LeaseId lease = Lease(b, 1024, true);
  const auto opened = ledger.operations().BeginOpen(other, {Share(b, lease)}, /*revocable=*/true);
  ASSERT_TRUE(opened.ok() && ledger.operations().Commit(*opened).ok());
  const WaiterId waiter = WaitFor(owner, 512);
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(b, other));
  now += absl::Seconds(10);
  EXPECT_THAT(Overdue(), ElementsAre(std::pair(b, false), std::pair(other, false)));
  ledger.endings().ProcessGone(b);
  EXPECT_FALSE(IsAdmitted(waiter));
  ledger.endings().ProcessGone(other);
  EXPECT_TRUE(IsAdmitted(waiter));
}

TEST_F(LedgerRevocationTest, SessionThatIsOpeningTheSegmentIsToldToo) {
  const SessionId b = Open("b"), opener = Open("b");
  const Secret ticket = Share(b, Lease(b, 1024, true));
  const auto opening = ledger.operations().BeginOpen(opener, {ticket}, /*revocable=*/true);
  ASSERT_TRUE(opening.ok()) << opening.status();
  WaitFor(Open("owner"), 300);
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(b, opener));
  EXPECT_THAT(ledger.look().RevokedLeases(opener).leases, IsEmpty()) << "it has none yet";
  ASSERT_TRUE(ledger.operations().Commit(*opening).ok());
  EXPECT_THAT(Drain(ledger.effects().revoked), ElementsAre(opener));
  EXPECT_THAT(ledger.look().RevokedLeases(opener).leases, ElementsAre(opening->items[0].lease));
}

TEST_F(LedgerRevocationTest, ATenantsLeasesMayAllBeRevocable) {
  const SessionId scavenger = Open("scavenger");
  Lease(scavenger, 1024, false);
  EXPECT_EQ(Usage("scavenger").revocable, kCapacity);
  EXPECT_TRUE(absl::IsUnimplemented(
      ledger.admission().BeginAcquire(scavenger, {.bytes = 1, .kind = Kind::kMempool}).status()));
}

}  // namespace
}  // namespace gpumemd
