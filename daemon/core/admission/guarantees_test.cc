// SPDX-License-Identifier: Apache-2.0
// Guarantees of tenants: who may use the memory, who goes first, and what a team's members share.
#include "daemon/core/admission/testing/queue_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using GuaranteesTest = LedgerQueueFixture;
using TeamsTest = LedgerQueueFixture;

TEST_F(GuaranteesTest, TenantBelowItsGuaranteeGoesBeforeEveryPriority) {
  ledger.tenants().Configure(
      {{"high", {.priority = 5}}, {"owner", {.guarantee_bytes = 8 * kGranule}}}, {});
  const SessionId high = Open("high"), owner = Open("owner"), a = Open("a");
  Fill(a, 1016);
  const WaiterId borrows = Wait(high, 1015);
  // Guaranteed memory is free: the request does not wait at all.
  Fill(owner, 8);
  const WaiterId over = Wait(owner, 1);
  ledger.tenants().Configure(
      {{"high", {.priority = 5}}, {"owner", {.guarantee_bytes = 9 * kGranule}}}, {});
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(over, borrows));
}

TEST_F(GuaranteesTest, RequestThatGuaranteesRuleOutIsDenied) {
  ledger.tenants().Configure({{"owner", {.guarantee_bytes = 700 * kGranule}}}, {});
  const absl::Status denied = ledger.admission().BeginAcquire(Open("b"), Of(400)).status();
  EXPECT_EQ(DenialOf(denied)->cause, Denial::Cause::kGuarantees) << denied;
  // The owner itself can have more than that.
  const SessionId owner = Open("owner");
  Fill(owner, 1000);
  Empty();
}

TEST_F(GuaranteesTest, GuaranteedMemoryIsNotLentToFirmLeases) {
  ledger.tenants().Configure({{"owner", {.guarantee_bytes = 24 * kGranule}}}, {});
  const SessionId owner = Open("owner"), b = Open("b");
  Fill(b, 1000);
  const absl::Status denied = ledger.admission().BeginAcquire(b, Of(1, /*waits=*/false)).status();
  ExpectDenial(denied, Denial::Cause::kGuarantees, "b", "GPU-1", kGranule, kCapacity, kCapacity);
  // To the last byte.
  Fill(owner, 24);
  EXPECT_EQ(ledger.state().charged(0), kCapacity);
  ExpectDenial(ledger.admission().BeginAcquire(owner, Of(1, false)).status(),
               Denial::Cause::kCapacity, "owner", "GPU-1", kGranule, kCapacity, kCapacity);
}

TEST_F(GuaranteesTest, TenantAboveItsGuaranteeBorrowsFreeMemory) {
  ledger.tenants().Configure({{"owner", {.guarantee_bytes = 24 * kGranule}},
                              {"second", {.guarantee_bytes = 100 * kGranule}}},
                             {});
  const SessionId owner = Open("owner"), second = Open("second");
  Fill(owner, 924);
  EXPECT_EQ(Usage("owner").guarantee, 24 * kGranule);
  EXPECT_EQ(Usage("owner").borrowed, 900 * kGranule);
  const WaiterId waits = Wait(owner, 1);
  Fill(second, 100);
  EXPECT_EQ(Usage("second").borrowed, 0u);
  EXPECT_THAT(Admit(), IsEmpty());
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waits));
}

TEST_F(GuaranteesTest, GuaranteeIsServedBesideMemoryThatOthersRetain) {
  ledger.tenants().Configure({{"owner", {.guarantee_bytes = 512 * kGranule}}}, {});
  const SessionId owner = Open("owner"), b = Open("b");
  Release(b, Acquire(b, 256 * kGranule, 2));
  Release(owner, Acquire(owner, 512 * kGranule, 1));
  EXPECT_EQ(Usage("b").retained, 512 * kGranule);
  EXPECT_EQ(AcquireOne(owner, 512 * kGranule).reused, true);
  EXPECT_EQ(Usage("b").retained, 512 * kGranule);
}

// --- Members and their team ------------------------------------------------------------

TEST_F(TeamsTest, MemoryOfMembersCountsAgainstTheirTeam) {
  ledger.tenants().Configure({{"team", {.limit_bytes = 10 * kGranule}},
                              {"x", {.limit_bytes = 8 * kGranule, .parent = "team"}},
                              {"y", {.parent = "team"}}},
                             {});
  const SessionId x = Open("x"), y = Open("y");
  Fill(x, 8);
  Fill(y, 2);
  const absl::Status denied = ledger.admission().BeginAcquire(y, Of(1, false)).status();
  ExpectDenial(denied, Denial::Cause::kDeviceLimit, "y", "GPU-1", kGranule, 10 * kGranule,
               10 * kGranule);
  EXPECT_EQ(DenialOf(denied)->limited_tenant, "team");
  EXPECT_THAT(HelpOf(denied), HasSubstr("quota set team"));
  ASSERT_THAT(DenialOf(denied)->holders, SizeIs(2));
  EXPECT_EQ(DenialOf(denied)->holders[0].tenant, "x");
  EXPECT_EQ(Usage("team").leased, 10 * kGranule);
  EXPECT_EQ(Usage("x").leased, 8 * kGranule);
  EXPECT_EQ(ledger.look().GetTenant("team")->sessions, 2u);
  EXPECT_THAT(ledger.look().GetTenant("x")->above, ElementsAre("team"));
  // Segments that one member only retains make room for another member.
  Release(x, {held[0].second});
  held.erase(held.begin());
  EXPECT_EQ(Usage("team").retained, 8 * kGranule);
  const absl::StatusOr<Admission> soon = ledger.admission().BeginAcquire(y, Of(1, false));
  ASSERT_TRUE(soon.ok() && soon->waiter) << soon.status();
  EXPECT_THAT(Admit(), ElementsAre(*soon->waiter));
  Empty();
}

TEST_F(TeamsTest, NumberLimitsOfATeamBindItsMembers) {
  ledger.tenants().Configure({{"team", {.max_segments = 2, .max_sessions = 2, .max_waiting = 1}},
                              {"x", {.parent = "team"}},
                              {"y", {.parent = "team"}}},
                             {});
  const SessionId x = Open("x"), y = Open("y");
  const absl::Status third = ledger.OpenSession("x", {}, NewSecret()).status();
  ExpectDenial(third, Denial::Cause::kMaxSessions, "x", "", 1, 2, 2);
  EXPECT_EQ(DenialOf(third)->limited_tenant, "team");
  Fill(x, 1);
  Fill(x, 1);
  const WaiterId waits = Wait(x, 1);
  ExpectDenial(ledger.admission().BeginAcquire(y, Of(1)).status(), Denial::Cause::kMaxWaiting, "y",
               "", 1, 1, 1);
  ExpectDenial(ledger.admission().BeginAcquire(y, Of(1, false)).status(),
               Denial::Cause::kMaxSegments, "y", "", 1, 2, 2);
  Empty();
  EXPECT_THAT(Admit(), ElementsAre(waits));
}

TEST_F(TeamsTest, GuaranteeOfAMemberHoldsWithinItsTeam) {
  ledger.tenants().Configure(
      {{"team", {.limit_bytes = 10 * kGranule, .guarantee_bytes = 8 * kGranule}},
       {"x", {.guarantee_bytes = 3 * kGranule, .parent = "team"}},
       {"y", {.parent = "team"}}},
      {});
  const SessionId x = Open("x"), y = Open("y"), stranger = Open("stranger");
  Fill(stranger, kCapacity / kGranule - 8);
  // x has three of the team's ten, and three of its guaranteed eight.
  const absl::Status denied = ledger.admission().BeginAcquire(y, Of(8, false)).status();
  EXPECT_EQ(DenialOf(denied)->cause, Denial::Cause::kGuarantees) << denied;
  EXPECT_EQ(DenialOf(denied)->limited_tenant, "team");
  Fill(y, 5);
  ExpectDenial(ledger.admission().BeginAcquire(y, Of(1, false)).status(),
               Denial::Cause::kGuarantees, "y", "GPU-1", kGranule, kCapacity, kCapacity);
  Fill(x, 3);
  Empty();
}

TEST_F(TeamsTest, MemberMovesToAnotherTeamWithItsMemory) {
  ledger.tenants().Configure({{"one", {}}, {"two", {}}, {"x", {.parent = "one"}}}, {});
  const SessionId x = Open("x");
  Fill(x, 5);
  EXPECT_EQ(Usage("one").leased, 5 * kGranule);
  ledger.tenants().Configure({{"two", {}}, {"x", {.parent = "two"}}}, {});
  EXPECT_EQ(Usage("two").leased, 5 * kGranule);
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetTenant("one").status()));
  ledger.tenants().Configure({}, {.parent = "two"});  // that tenant does not exist now
  EXPECT_EQ(Usage("x").leased, 5 * kGranule);
  EXPECT_THAT(ledger.look().GetTenant("x")->above, IsEmpty());
  Empty();
}

}  // namespace
}  // namespace gpumemd
