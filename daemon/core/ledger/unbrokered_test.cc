// SPDX-License-Identifier: Apache-2.0
// Memory that was taken past the broker: shown, counted against no limit, and a reason for denials
// if the ledger is told so.
#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace {

class UnbrokeredTest : public LedgerFixture {
 protected:
  void SetUp() override { ledger.tenants().Configure({{"team", {}}, {"other", {}}}, {}); }
};

TEST_F(UnbrokeredTest, UnbrokeredMemoryIsShownAndNotCharged) {
  const SessionId session = OpenSession("team");
  ledger.SetUnbrokered({{session, "GPU-1", kCapacity}, {session, "GPU-2", 5}});
  Acquire(session, kCapacity);  // every byte
  EXPECT_EQ(Usage("team", 0).charged, kCapacity);
  EXPECT_EQ(Usage("team", 0).unbrokered, kCapacity);
  EXPECT_EQ(Usage("team", 1).unbrokered, 5u);
  EXPECT_EQ(ledger.look().ListSessions("team")->at(0).unbrokered, kCapacity + 5);
  // A use that is no longer reported is no longer shown.
  ledger.SetUnbrokered({{session, "GPU-2", 3}});
  EXPECT_EQ(Usage("team", 0).unbrokered, 0u);
  EXPECT_EQ(Usage("team", 1).unbrokered, 3u);
}

TEST_F(UnbrokeredTest, DeniesItsTenantOnEveryDeviceUntilItIsGone) {
  const SessionId session = OpenSession("team"), second = OpenSession("team");
  const Operation::Item held = AcquireOne(session, kGranule);
  const Secret ticket = Share(session, held.lease);
  ledger.SetUnbrokered({{session, "GPU-2", kGranule, true}, {second, "GPU-2", 1}});
  for (const SessionId refused : {session, second}) {
    for (const char* device : {"GPU-1", "GPU-2"}) {
      const absl::Status denied = Ask(refused, 1, 3, device).status();
      ExpectDenial(denied, Denial::Cause::kUnbrokered, "team", "GPU-2", 3 * kGranule, kGranule + 1,
                   0);
    }
  }
  EXPECT_EQ(ledger.look().GetTenant("team")->denials, 4u);
  // Other tenants are not denied, and existing leases can be opened and released.
  Acquire(OpenSession("other"), kGranule);
  Release(second, {OpenTicket(second, ticket)});
  Release(session, {held});
  ledger.SetUnbrokered({{session, "GPU-2", kGranule, false}});
  Acquire(session, kGranule);
}

TEST_F(UnbrokeredTest, DeniesRequestsThatWait) {
  AcquireOne(OpenSession("other"), kCapacity);
  const SessionId session = OpenSession("team");
  ASSERT_TRUE(ledger.sessions().BeginCall(session).ok());
  const auto admission = ledger.admission().BeginAcquire(
      session, {.device_uuid = "GPU-1", .bytes = kGranule, .waits = true});
  ASSERT_TRUE(admission.ok()) << admission.status();
  ASSERT_TRUE(admission->waiter);
  EXPECT_TRUE(ledger.admission().AdmitWaiting().empty());
  ledger.SetUnbrokered({{session, "GPU-1", kGranule, true}});
  const std::vector<AdmissionControl::Admitted> denied = ledger.admission().AdmitWaiting();
  ASSERT_EQ(denied.size(), 1u);
  EXPECT_EQ(denied[0].waiter, *admission->waiter);
  ExpectDenial(denied[0].operation.status(), Denial::Cause::kUnbrokered, "team", "GPU-1", kGranule,
               kGranule, 0);
}

TEST_F(UnbrokeredTest, GoesWithItsSession) {
  const SessionId session = OpenSession("team"), second = OpenSession("team");
  ledger.SetUnbrokered({{session, "GPU-1", 7, true}});
  ledger.endings().ProcessGone(session);
  EXPECT_EQ(Usage("team").unbrokered, 0u);
  Acquire(second, kGranule);
}

}  // namespace
}  // namespace gpumemd
