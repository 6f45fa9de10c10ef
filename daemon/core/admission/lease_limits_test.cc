// SPDX-License-Identifier: Apache-2.0
// Limits of leases: of a session, of a tenant and of the daemon.
#include <vector>

#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace {

class FewLeases : public LedgerFixture {
 protected:
  FewLeases() : LedgerFixture({.max_leases_per_session = 3}) {}
};

TEST_F(FewLeases, OneMoreLeaseThanASessionMayHoldIsDenied) {
  const SessionId session = OpenSession("team"), other = OpenSession("team");
  const LeaseId lease = Acquire(session, kGranule)[0].lease;
  const Secret ticket = *ledger.leases().Share(session, lease, TicketScope::kTenant, NewSecret());
  for (int i = 0; i < 2; ++i) {
    const auto operation = ledger.operations().BeginOpen(session, {ticket});
    ASSERT_TRUE(operation.ok()) << operation.status();
    ASSERT_TRUE(ledger.operations().Commit(*operation).ok());
  }
  const absl::Status more = ledger.operations().BeginOpen(session, {ticket}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(more)) << more;
  EXPECT_EQ(DenialOf(more)->cause, Denial::Cause::kDaemonLimit);
  EXPECT_EQ(DenialOf(more)->used, 3u);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, kGranule).status()));
  // It is a bound of the session, not of its tenant.
  EXPECT_EQ(Acquire(other, kGranule, 3).size(), 3u);
  ASSERT_TRUE(ledger.leases().Release(session, {lease}).ok());
  EXPECT_EQ(Acquire(session, kGranule).size(), 1u);
}

// Several requests of one session may each be below the bound, and together above it.
TEST_F(FewLeases, WaiterAboveTheLeaseLimitIsDenied) {
  const SessionId session = OpenSession("team"), other = OpenSession("other");
  const auto held = Acquire(other, kCapacity);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(ledger.sessions().BeginCall(session).ok());
    const auto admission = ledger.admission().BeginAcquire(
        session, {.device_uuid = "GPU-1", .bytes = kGranule, .count = 2, .waits = true});
    ASSERT_TRUE(admission.ok() && admission->waiter) << admission.status();
  }
  Release(other, held);
  EXPECT_THAT(ledger.admission().AdmitWaiting(), ::testing::IsEmpty());
  DestroyDoomed();
  const auto admitted = ledger.admission().AdmitWaiting();
  ASSERT_EQ(admitted.size(), 2u);
  ASSERT_TRUE(admitted[0].operation.ok()) << admitted[0].operation.status();
  Finish(*admitted[0].operation);
  ExpectDenial(admitted[1].operation.status(), Denial::Cause::kDaemonLimit, "team", "", 2, 2, 3);
  EXPECT_EQ(ledger.look().GetTenant("team")->waiting, 0u);
}

class FewLeasesInAll : public LedgerFixture {
 protected:
  FewLeasesInAll() : LedgerFixture({.max_leases_per_tenant = 4, .max_leases = 6}) {}
};

TEST_F(FewLeasesInAll, TenantAboveItsLeaseLimitIsDenied) {
  const SessionId session = OpenSession("team"), other = OpenSession("team");
  const Operation::Item item = AcquireOne(session, kGranule);
  const Secret ticket = Share(session, item.lease);
  // Leases of a pending operation count, too.
  const auto opening = ledger.operations().BeginOpen(session, {ticket, ticket});
  ASSERT_TRUE(opening.ok()) << opening.status();
  const auto denied = [&] {
    return ledger.operations().BeginOpen(other, {ticket, ticket}).status();
  };
  ExpectDenial(denied(), Denial::Cause::kDaemonLimit, "team", "", 2, 3, 4);
  ledger.operations().Abort(*opening, /*handed_over=*/false);
  OpenTicket(other, ticket);
  OpenTicket(other, ticket);
  ExpectDenial(denied(), Denial::Cause::kDaemonLimit, "team", "", 2, 3, 4);
  EXPECT_THAT(HelpOf(denied()), ::testing::StartsWith("the tenant is at"));
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, kGranule, 2).status()));
  // A session that ends during a hand-over never had the lease.
  const auto late = ledger.operations().BeginOpen(other, {ticket});
  ASSERT_TRUE(late.ok()) << late.status();
  ledger.endings().SocketClosed(other);
  EXPECT_TRUE(absl::IsAborted(ledger.operations().Commit(*late)));
  EXPECT_TRUE(ledger.operations().BeginOpen(session, {ticket, ticket, ticket}).ok());
}

TEST_F(FewLeasesInAll, LeaseLimitOfTheDaemonCountsAllTenants) {
  const SessionId a = OpenSession("a"), b = OpenSession("b");
  Acquire(a, kGranule, 4);
  const auto of_b = Acquire(b, kGranule, 1);
  ExpectDenial(Ask(b, kGranule, 2).status(), Denial::Cause::kDaemonLimit, "b", "", 2, 5, 6);
  Release(b, of_b);
  EXPECT_EQ(Acquire(b, kGranule, 2).size(), 2u);
}

}  // namespace
}  // namespace gpumemd
