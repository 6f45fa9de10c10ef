// SPDX-License-Identifier: Apache-2.0
// AdmitWaiting() must notice every change that can serve a waiter. The model test found each of
// these cases (ledger/testing/model_test.cc).
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/ledger/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class LedgerWakeupTest : public LedgerFixture {
 protected:
  static AcquireSpec Of(uint64_t granules, bool revocable, bool waits,
                        std::string device = "GPU-1") {
    return {.device_uuid = std::move(device),
            .bytes = granules * kGranule,
            .revocable = revocable,
            .waits = waits};
  }
  SessionId Open(absl::string_view tenant) {
    const SessionId session = OpenSession(tenant);
    EXPECT_TRUE(ledger.sessions().BeginCall(session).ok());
    return session;
  }
  Operation Ask(SessionId session, uint64_t granules, bool revocable,
                std::string device = "GPU-1") {
    const auto admission =
        ledger.admission().BeginAcquire(session, Of(granules, revocable, false, std::move(device)));
    EXPECT_TRUE(admission.ok() && admission->operation) << admission.status();
    return admission.ok() && admission->operation ? *admission->operation : Operation{};
  }
  std::vector<Operation::Item> Hold(SessionId session, uint64_t granules, bool revocable,
                                    std::string device = "GPU-1") {
    const Operation operation = Ask(session, granules, revocable, std::move(device));
    EXPECT_TRUE(ledger.operations().Commit(operation).ok());
    return operation.items;
  }
  WaiterId Wait(SessionId session, uint64_t granules, bool revocable = false) {
    const auto admission = ledger.admission().BeginAcquire(session, Of(granules, revocable, true));
    EXPECT_TRUE(admission.ok() && admission->waiter) << admission.status();
    return admission.ok() ? admission->waiter.value_or(WaiterId{}) : WaiterId{};
  }
};

TEST_F(LedgerWakeupTest, RevocableMemoryIsTakenBackOnceItIsHandedOver) {
  ledger.tenants().Configure({{"owner", {.guarantee_bytes = 512 * kGranule}}, {"other", {}}}, {});
  const Operation underway = Ask(Open("other"), 1024, /*revocable=*/true);
  const SessionId owner = Open("owner");
  const WaiterId waiter = Wait(owner, 512);
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  EXPECT_THAT(Drain(ledger.effects().revoked), IsEmpty());  // its client has not got it yet
  ASSERT_TRUE(ledger.operations().Commit(underway).ok());
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  EXPECT_THAT(Drain(ledger.effects().revoked), SizeIs(1));
  EXPECT_TRUE(ledger.state().waiters.at(waiter).revokes);
}

TEST_F(LedgerWakeupTest, ForATotalLimitRevocableMemoryIsTakenBackOnAnyDevice) {
  ledger.tenants().Configure({{"team", {.total_limit_bytes = 1024 * kGranule}},
                              {"a", {.guarantee_bytes = 256 * kGranule, .parent = "team"}},
                              {"b", {.parent = "team"}}},
                             {});
  const SessionId b = Open("b");
  Hold(b, 1024, /*revocable=*/true, "GPU-2");
  const WaiterId waiter = Wait(Open("a"), 256);
  EXPECT_THAT(Drain(ledger.effects().revoked), SizeIs(1));
  now += absl::Seconds(10);
  EXPECT_THAT(ledger.revocations().TakeOverdue(),
              SizeIs(1));  // it has not lapsed: a waiter needs it
  ledger.endings().ProcessGone(b);
  ledger.admission().AdmitWaiting();
  DestroyDoomed();
  const auto admitted = ledger.admission().AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_EQ(admitted[0].waiter, waiter);
  ASSERT_TRUE(admitted[0].operation.ok()) << admitted[0].operation.status();
  ASSERT_TRUE(ledger.operations().Commit(*admitted[0].operation).ok());
}

TEST_F(LedgerWakeupTest, GuaranteeOfAForgottenTenantIsFree) {
  // Such defaults are not for real use: tenants that come and go can be guaranteed nothing.
  ledger.tenants().Configure({{"team", {}}}, {.guarantee_bytes = 512 * kGranule});
  const SessionId passer_by = OpenSession("uid1");
  Hold(Open("team"), 400, /*revocable=*/false);
  const WaiterId waiter = Wait(Open("team"), 512);
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  ledger.endings().ProcessGone(passer_by);
  const auto admitted = ledger.admission().AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_EQ(admitted[0].waiter, waiter);
  ASSERT_TRUE(admitted[0].operation.ok());
  ASSERT_TRUE(ledger.operations().Commit(*admitted[0].operation).ok());
}

// Since the next in line now waits for its team, and no longer for the device.
TEST_F(LedgerWakeupTest, ArrivalOfHigherPriorityMayAdmitOthers) {
  ledger.tenants().Configure({{"team", {.limit_bytes = 200 * kGranule}},
                              {"x", {.parent = "team"}},
                              {"y", {.priority = 5, .parent = "team"}}},
                             {});
  Hold(Open("x"), 90, /*revocable=*/false);
  Hold(Open("other"), 854, /*revocable=*/false);
  Wait(Open("x"), 100);  // 80 are left
  const WaiterId behind = Wait(Open("other"), 50);
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  Wait(Open("y"), 120);
  const auto admitted = ledger.admission().AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_EQ(admitted[0].waiter, behind);
  ASSERT_TRUE(admitted[0].operation.ok());
  ASSERT_TRUE(ledger.operations().Commit(*admitted[0].operation).ok());
}

// A waiter that can no longer get anything blocks no other waiter.
TEST_F(LedgerWakeupTest, WaiterIsRefusedOnceItsProcessHoldsTheOtherSort) {
  ledger.tenants().Configure({{"a", {}}, {"b", {}}}, {});
  const auto held = Hold(Open("b"), 512, /*revocable=*/false);
  const SessionId a = Open("a");
  const WaiterId firm = Wait(a, 1024);  // claims all of it
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());
  ASSERT_TRUE(ledger.sessions().BeginCall(a).ok());
  Hold(a, 1, /*revocable=*/true, "GPU-2");
  const auto admitted = ledger.admission().AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_EQ(admitted[0].waiter, firm);
  EXPECT_TRUE(absl::IsFailedPrecondition(admitted[0].operation.status()));
  Hold(Open("b"), 512, /*revocable=*/false);
}

// A request that comes between the change of a quota and the next pass brings the order of the
// waiters up to date. The pass must still check them.
TEST_F(LedgerWakeupTest, DeniedRequestDoesNotHideANewQuotaFromWaiters) {
  ledger.tenants().Configure({{"a", {.limit_bytes = kGranule}}, {"b", {}}}, {});
  const SessionId a = Open("a"), b = Open("b");
  Hold(a, 1, /*revocable=*/false);
  const WaiterId waiter = Wait(a, 1);
  EXPECT_THAT(ledger.admission().AdmitWaiting(), IsEmpty());

  SetQuota("a", {.limit_bytes = 2 * kGranule});
  EXPECT_FALSE(ledger.admission().BeginAcquire(b, Of(1024, false, /*waits=*/false)).ok());
  EXPECT_TRUE(ledger.admission().QueueMoves());
  const auto admitted = ledger.admission().AdmitWaiting();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_EQ(admitted[0].waiter, waiter);
  EXPECT_TRUE(admitted[0].operation.ok()) << admitted[0].operation.status();
}

}  // namespace
}  // namespace gpumemd
