// SPDX-License-Identifier: Apache-2.0
// Charges for memory that the CUDA driver of a process makes (kind driver), and what the driver
// takes beyond them.
#include "daemon/core/driver/overheads.h"

#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using absl::StatusCode;
using testing::ElementsAre;

class LedgerDriverTest : public LedgerFixture {
 protected:
  LedgerDriverTest() : LedgerFixture({}, {Device("GPU-1", {Kind::kVmm, Kind::kDriver})}) {}
  Operation::Item AcquireDriver(SessionId session, uint64_t bytes) {
    const auto operation = Ask(session, {.bytes = bytes, .kind = Kind::kDriver});
    EXPECT_TRUE(Granted(operation)) << operation.status();
    Finish(**operation);
    return (*operation)->items.at(0);
  }
};

TEST_F(LedgerDriverTest, ReleasedMemoryIsFreeAtOnceWhateverTheTenantsReleasePolicy) {
  SetQuota("a", {.max_retained_bytes = kCapacity, .release = ReleasePolicy::kOnExit});
  const SessionId session = OpenSession("a");
  const Operation::Item item = AcquireDriver(session, 3 * kGranule);
  EXPECT_EQ(Usage("a").charged, 3 * kGranule);
  EXPECT_EQ(ledger.state().sessions.at(session)->driver_bytes.at(0), 3 * kGranule);
  Release(session, {item});
  EXPECT_THAT(DestroyDoomed(), ElementsAre(item.segment));
  EXPECT_EQ(Usage("a").charged, 0u);
  EXPECT_TRUE(ledger.state().sessions.at(session)->driver_bytes.empty());
}

TEST_F(LedgerDriverTest, ItStaysChargedUntilTheProcessIsGone) {
  const SessionId session = OpenSession("a");
  const Operation::Item item = AcquireDriver(session, 3 * kGranule);
  ledger.endings().SocketClosed(session);
  EXPECT_EQ(StateOf(item), SegmentState::kLingering);
  ledger.endings().ProcessGone(session);
  EXPECT_THAT(DestroyDoomed(), ElementsAre(item.segment));
}

TEST_F(LedgerDriverTest, NoOtherSessionCanHaveIt) {
  const SessionId session = OpenSession("a");
  const LeaseId lease = AcquireDriver(session, kGranule).lease;
  for (const TicketScope scope : {TicketScope::kTenant, TicketScope::kAny}) {
    const auto refused = ledger.leases().Share(session, lease, scope, NewSecret());
    EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition) << refused.status();
  }
}

TEST_F(LedgerDriverTest, AnOverheadIsChargedWithoutAQuestionAndBlocksFurtherGrants) {
  SetQuota("a", {.limit_bytes = 10 * kGranule});
  const SessionId session = OpenSession("a");
  AcquireDriver(session, 8 * kGranule);
  const auto set = [&](uint64_t bytes) {
    return ledger.overheads().Set({session, "GPU-1", bytes}).size();
  };
  EXPECT_EQ(set(5 * kGranule + 1), 1u);
  EXPECT_EQ(Usage("a").charged, 13 * kGranule);
  EXPECT_EQ(Ask(session, kGranule).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(set(5 * kGranule), 0u) << "as it was";
  EXPECT_EQ(set(6 * kGranule), 1u);
  EXPECT_EQ(Usage("a").charged, 14 * kGranule);
  const auto sessions = ledger.look().ListSessions("a");
  EXPECT_EQ(sessions->at(0).driver_bytes.at("GPU-1"), 8 * kGranule);
  EXPECT_EQ(sessions->at(0).overhead_bytes.at("GPU-1"), 6 * kGranule);
  // It shrinks by whole leases.
  EXPECT_EQ(set(5 * kGranule), 0u);
  DestroyDoomed();
  EXPECT_EQ(Usage("a").charged, 13 * kGranule);
  EXPECT_EQ(set(kGranule), 0u);
  DestroyDoomed();
  EXPECT_EQ(Usage("a").charged, 13 * kGranule) << "5 granules are one lease";
  EXPECT_EQ(set(0), 0u);
  DestroyDoomed();
  EXPECT_EQ(Usage("a").charged, 8 * kGranule);
  EXPECT_TRUE(Granted(Ask(session, kGranule)));
}

TEST_F(LedgerDriverTest, AnOverheadIsRevocableIfTheLeasesOfItsProcessAre) {
  const SessionId idle = OpenSession("a"), lends = OpenSession("b");
  EXPECT_EQ(ledger.overheads().Set({idle, "GPU-1", kGranule}).size(), 1u) << "it has no leases";
  EXPECT_EQ(Usage("a").charged, kGranule);
  EXPECT_EQ(Usage("a").revocable, 0u);
  const auto lent = Ask(lends, {.bytes = kGranule, .kind = Kind::kDriver, .revocable = true});
  ASSERT_TRUE(Granted(lent)) << lent.status();
  Finish(**lent);
  EXPECT_EQ(ledger.overheads().Set({lends, "GPU-1", 2 * kGranule}).size(), 1u);
  EXPECT_EQ(Usage("b").revocable, 3 * kGranule);
}

TEST_F(LedgerDriverTest, NoClientReleasesAnOverhead) {
  const SessionId session = OpenSession("a");
  AcquireDriver(session, kGranule);
  ledger.overheads().Set({session, "GPU-1", kGranule});
  const LeaseId overhead = ledger.state().sessions.at(session)->overheads.at(0).at(0);
  EXPECT_EQ(ledger.leases().Release(session, {overhead}).code(), StatusCode::kNotFound);
  EXPECT_EQ(Usage("a").charged, 2 * kGranule);
}

TEST_F(LedgerDriverTest, AClientThatReconnectsNeedNotKnowItsOverhead) {
  const SessionId session = OpenSession("a");
  const LeaseId lease = AcquireDriver(session, kGranule).lease;
  ledger.overheads().Set({session, "GPU-1", 2 * kGranule});
  ASSERT_TRUE(ledger.reconciliation().Reconcile(session, {lease}, {}).ok());
  DestroyDoomed();
  EXPECT_EQ(Usage("a").charged, 3 * kGranule);
}

TEST_F(LedgerDriverTest, AnOverheadThatGrowsBetweenThePartsOfAReconcileStays) {
  const SessionId session = OpenSession("a");
  const LeaseId lease = AcquireDriver(session, kGranule).lease;
  Reconciliation::Statement statement({lease}, {1});
  ASSERT_FALSE(ledger.reconciliation().Reconcile(session, statement, /*steps=*/2).value());
  EXPECT_EQ(ledger.overheads().Set({session, "GPU-1", 2 * kGranule}).size(), 1u);
  ASSERT_TRUE(ledger.reconciliation().Reconcile(session, statement, SIZE_MAX).value());
  EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  DestroyDoomed();
  EXPECT_EQ(Usage("a").charged, 3 * kGranule);
}

TEST_F(LedgerDriverTest, AnOverheadIsNeverMoreThanTheDeviceHasLeft) {
  const SessionId session = OpenSession("a");
  AcquireDriver(session, kCapacity - 2 * kGranule);
  ledger.overheads().Set({session, "GPU-1", kCapacity});
  EXPECT_EQ(Usage("a").charged, kCapacity);
  EXPECT_TRUE(ledger.overheads().Set({session, "GPU-1", 2 * kCapacity}).empty());
  EXPECT_TRUE(ledger.overheads().Set({SessionId{77}, "GPU-1", kGranule}).empty());
  EXPECT_TRUE(ledger.overheads().Set({session, "GPU-7", kGranule}).empty());
}

TEST_F(LedgerDriverTest, AnOverheadOfManyStepsIsFewLeases) {
  const SessionId session = OpenSession("a");
  AcquireDriver(session, kGranule);
  for (uint64_t steps = 1; steps <= 400; ++steps) {
    ledger.overheads().Set({session, "GPU-1", steps * kGranule});
    EXPECT_LE(Usage("a").charged, (steps + 1) * kGranule);
    EXPECT_GE(Usage("a").charged, steps * 7 / 8 * kGranule);
  }
  EXPECT_LE(ledger.state().sessions.at(session)->leases.size(), 50u);
  const uint64_t charged = Usage("a").charged;
  ledger.endings().SocketClosed(session);
  EXPECT_EQ(Usage("a").charged, charged) << "its process lives";
  EXPECT_TRUE(ledger.overheads().Set({session, "GPU-1", kGranule}).empty());
  ledger.endings().ProcessGone(session);
  DestroyDoomed();
  EXPECT_FALSE(ledger.look().GetTenant("a").ok()) << "nothing is left of it";
}

}  // namespace
}  // namespace gpumemd
