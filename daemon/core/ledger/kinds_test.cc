// SPDX-License-Identifier: Apache-2.0
// What each kind of segment adds to the ledger, by example: sentences, pinned memory, losses,
// events. The model test covers the rest.
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

class LedgerKindsTest : public testing::Test {
 protected:
  LedgerKindsTest()
      : ledger_({{.uuid = "GPU-1",
                  .capacity_bytes = 16 * kGranule,
                  .granularity_bytes = kGranule,
                  .kinds = {Kind::kVmm, Kind::kMempool}},
                 {.uuid = "GPU-2",
                  .capacity_bytes = 16 * kGranule,
                  .granularity_bytes = kGranule,
                  .kinds = {Kind::kVmm, Kind::kIpc}},
                 {.uuid = "PINNED-0",
                  .capacity_bytes = 16 * kGranule,
                  .granularity_bytes = kGranule,
                  .kinds = {Kind::kPinned}},
                 {.uuid = "TIER-0",
                  .capacity_bytes = 16 * kGranule,
                  .granularity_bytes = kGranule,
                  .kinds = {Kind::kTier}}},
                {}, [] { return absl::UnixEpoch(); }) {
    session_ = Open("a", 1);
  }
  void TearDown() override { EXPECT_EQ(ledger_.CheckInvariants(), absl::OkStatus()); }

  SessionId Open(absl::string_view tenant, uint8_t token) {
    return ledger_.OpenSession(tenant, {}, Secret{token}).value();
  }
  absl::StatusOr<Operation> Acquire(const AcquireSpec& spec) {
    auto begun = ledger_.admission().BeginAcquire(session_, spec);
    if (!begun.ok()) return begun.status();
    EXPECT_EQ(ledger_.operations().Commit(*begun->operation), absl::OkStatus());
    return *begun->operation;
  }

  Ledger ledger_;
  SessionId session_{};
};

TEST_F(LedgerKindsTest, ARequestGoesToTheFirstDeviceThatMakesItsKind) {
  EXPECT_EQ(Acquire({.bytes = 1})->device, 0u);
  EXPECT_EQ(Acquire({.bytes = 1, .kind = Kind::kIpc})->device, 1u);
  EXPECT_EQ(Acquire({.bytes = 1, .kind = Kind::kPinned})->device, 2u);
}

TEST_F(LedgerKindsTest, KindThatADeviceLacksIsRefusedWithItsKinds) {
  const auto refused = Acquire({.device_uuid = "GPU-1", .bytes = 1, .kind = Kind::kIpc});
  EXPECT_EQ(refused.status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(refused.status().message(),
            "device GPU-1 does not make segments of kind ipc; it makes vmm, mempool; GPU-2 makes "
            "that kind");
}

TEST_F(LedgerKindsTest, MemoryOfTheHostTierCannotBeAcquired) {
  const AcquireSpec wrong[] = {{.bytes = 1, .kind = Kind::kTier},
                               {.device_uuid = "TIER-0", .bytes = 1},
                               {.device_uuid = "TIER-0", .bytes = 1, .kind = Kind::kTier},
                               {.device_uuid = "TIER-0", .bytes = 1, .kind = Kind::kVmm},
                               {.bytes = 1, .kind = Kind::kTier, .most_free = true}};
  for (const AcquireSpec& spec : wrong) {
    EXPECT_EQ(Acquire(spec).status().code(), StatusCode::kUnimplemented);
  }
  EXPECT_EQ(Acquire(wrong[1]).status().message(),
            "device TIER-0 holds the contents of suspended memory: segments of kind tier cannot be "
            "acquired");
}

TEST_F(LedgerKindsTest, MostFreeIsWhereTheTenantCanGetMost) {
  EXPECT_EQ(Acquire({.bytes = 3 * kGranule, .most_free = true})->device, 0u);
  EXPECT_EQ(Acquire({.bytes = 1, .most_free = true})->device, 1u);
  // With a limit on that device, the first is the better one again.
  ledger_.tenants().OverrideQuota("a", {{.device_limits = {{"GPU-2", 2 * kGranule}}}});
  EXPECT_EQ(Acquire({.bytes = 1, .most_free = true})->device, 0u);
  EXPECT_EQ(Acquire({.bytes = 1, .most_free = true, .among = {"GPU-1"}})->device, 0u);
  // A request that waits is kept with its list.
  const std::vector<std::string> many(ledger_.state().devices.size() + 1, "GPU-1");
  EXPECT_EQ(Acquire({.bytes = 1, .most_free = true, .among = many}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Acquire({.device_uuid = "GPU-1", .bytes = 1, .among = many}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Acquire({.device_uuid = "GPU-1", .bytes = 1, .most_free = true}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(LedgerKindsTest, PinnedMemoryHasALimitOfItsOwn) {
  ledger_.tenants().OverrideQuota("a", {{.limit_bytes = kGranule,
                                         .total_limit_bytes = kGranule,
                                         .pinned_limit_bytes = 2 * kGranule}});
  EXPECT_TRUE(Acquire({.bytes = 2 * kGranule, .kind = Kind::kPinned}).ok());
  const auto denied = Acquire({.bytes = 1, .kind = Kind::kPinned});
  EXPECT_EQ(denied.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(denied.status().message()), HasSubstr("quota set a --pinned-limit SIZE"));
  EXPECT_TRUE(Acquire({.bytes = kGranule}).ok());  // and does not count against the other limits
  EXPECT_EQ(ledger_.look().GetTenant("a")->charged, kGranule);
}

TEST_F(LedgerKindsTest, AQuotaThatNamesHostMemoryAsADeviceIsToldItsLimit) {
  const auto refusal = [&](const Quota& quota) {
    return std::string(ledger_.tenants().CheckDevices(quota).message());
  };
  EXPECT_THAT(refusal({.device_limits = {{"TIER-0", 1}}}), HasSubstr("set tier_limit_bytes"));
  EXPECT_THAT(refusal({.device_limits = {{"PINNED-0", 1}}}), HasSubstr("set pinned_limit_bytes"));
  EXPECT_THAT(refusal({.device_guarantees = {{"TIER-0", 1}}}), HasSubstr("cannot be guaranteed"));
}

TEST_F(LedgerKindsTest, APoolIsNotSharedAcrossTenants) {
  const LeaseId lease = Acquire({.bytes = 1, .kind = Kind::kMempool})->items[0].lease;
  const auto refused = ledger_.leases().Share(session_, lease, TicketScope::kAny, Secret{7});
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(ledger_.leases().Share(session_, lease, TicketScope::kTenant, Secret{7}).ok());
}

// The tests below are about the tenant's memory pool on a device.

TEST_F(LedgerKindsTest, ReleasedMemoryOfAPoolStaysChargedWhileAProcessHasThePoolOpen) {
  const SessionId opener = Open("a", 2);
  const Operation::Item made = Acquire({.bytes = 1, .kind = Kind::kMempool})->items[0];
  const Operation::Item kept = Acquire({.bytes = 1, .kind = Kind::kMempool})->items[0];
  const auto opened = ledger_.operations().BeginOpen(
      opener, {*ledger_.leases().Share(session_, made.lease, TicketScope::kTenant, Secret{7})});
  ASSERT_EQ(ledger_.operations().Commit(*opened), absl::OkStatus());
  ASSERT_EQ(ledger_.leases().Release(session_, {made.lease, kept.lease}), absl::OkStatus());
  ASSERT_EQ(ledger_.leases().Release(opener, {opened->items[0].lease}), absl::OkStatus());
  ledger_.endings().ProcessGone(session_);
  // The opener never had the second, and still keeps it.
  EXPECT_TRUE(Drain(ledger_.effects().doomed).empty());
  EXPECT_EQ(ledger_.look().GetTenant("a")->devices[0].lingering, 2 * kGranule);
  EXPECT_THAT(ledger_.look().ListSegments("a", "")->at(1).sessions, ElementsAre(opener));
  ledger_.endings().ProcessGone(opener);
  EXPECT_THAT(Drain(ledger_.effects().doomed), ElementsAre(made.segment, kept.segment));
  ledger_.Destroyed(made.segment);
  ledger_.Destroyed(kept.segment);
}

TEST_F(LedgerKindsTest, ReleasedMemoryOfAPoolIsReusedAndOtherwiseInTheWay) {
  ledger_.tenants().OverrideQuota("a", {{.limit_bytes = 2 * kGranule, .max_retained_bytes = 0}});
  const Operation::Item item = Acquire({.bytes = kGranule, .kind = Kind::kMempool})->items[0];
  ASSERT_EQ(ledger_.leases().Release(session_, {item.lease}), absl::OkStatus());
  const auto denied = Acquire({.bytes = 2 * kGranule});
  EXPECT_EQ(denied.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(denied.status().message()),
              HasSubstr("end the processes that have used kind mempool (CUDA keeps 2.00 MiB that "
                        "were released until then)"));
  const auto again = Acquire({.bytes = kGranule, .kind = Kind::kMempool});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->items[0].segment, item.segment);
  EXPECT_TRUE(again->items[0].reused);
}

// Its process mapped it until then, so it stays in the same state.
TEST_F(LedgerKindsTest, AWaiterGetsPoolMemoryWhoseProcessHasEnded) {
  ledger_.tenants().OverrideQuota(
      "a", {{.limit_bytes = 2 * kGranule, .release = ReleasePolicy::kOnExit}});
  const SessionId ends = Open("a", 2);
  const auto held = ledger_.admission().BeginAcquire(ends, {.bytes = 1, .kind = Kind::kMempool});
  ASSERT_TRUE(held.ok()) << held.status();
  const Operation::Item item = held->operation->items[0];
  ASSERT_EQ(ledger_.operations().Commit(*held->operation), absl::OkStatus());
  ASSERT_TRUE(Acquire({.bytes = 1, .kind = Kind::kMempool}).ok());  // has the pool open
  ASSERT_EQ(ledger_.leases().Release(ends, {item.lease}), absl::OkStatus());
  const auto waits = ledger_.admission().BeginAcquire(
      session_, {.bytes = 1, .kind = Kind::kMempool, .waits = true});
  ASSERT_TRUE(waits.ok() && waits->waiter) << waits.status();
  EXPECT_TRUE(ledger_.admission().AdmitWaiting().empty());
  ledger_.endings().ProcessGone(ends);
  const auto admitted = ledger_.admission().AdmitWaiting();
  ASSERT_EQ(admitted.size(), 1u);
  ASSERT_TRUE(admitted[0].operation.ok()) << admitted[0].operation.status();
  EXPECT_EQ(admitted[0].operation->items[0].segment, item.segment);
  EXPECT_EQ(ledger_.operations().Commit(*admitted[0].operation), absl::OkStatus());
}

TEST_F(LedgerKindsTest, AWaiterForMoreThanItsPoolHasGetsTheRestFromOthers) {
  const Operation::Item pooled = Acquire({.bytes = 2 * kGranule, .kind = Kind::kMempool})->items[0];
  ASSERT_EQ(ledger_.leases().Release(session_, {pooled.lease}), absl::OkStatus());
  const SessionId other = Open("b", 2);
  const auto held = ledger_.admission().BeginAcquire(other, {.bytes = 12 * kGranule});
  ASSERT_TRUE(held.ok() && held->operation) << held.status();
  ASSERT_EQ(ledger_.operations().Commit(*held->operation), absl::OkStatus());
  const auto waits = ledger_.admission().BeginAcquire(
      session_,
      {.bytes = 2 * kGranule, .kind = Kind::kMempool, .count = 3, .waits = true});  // 2 are left
  ASSERT_TRUE(waits.ok() && waits->waiter) << waits.status();
  EXPECT_TRUE(ledger_.admission().AdmitWaiting().empty());
  const LeaseId lease = held->operation->items[0].lease;
  ASSERT_EQ(ledger_.leases().Release(other, {lease}), absl::OkStatus());
  EXPECT_TRUE(ledger_.admission().AdmitWaiting().empty());
  for (SegmentId doomed : Drain(ledger_.effects().doomed)) ledger_.Destroyed(doomed);
  const auto admitted = ledger_.admission().AdmitWaiting();
  ASSERT_EQ(admitted.size(), 1u);
  ASSERT_TRUE(admitted[0].operation.ok()) << admitted[0].operation.status();
  EXPECT_EQ(admitted[0].operation->items[0].segment, pooled.segment);
  EXPECT_TRUE(admitted[0].operation->items[0].reused);
  EXPECT_EQ(ledger_.operations().Commit(*admitted[0].operation), absl::OkStatus());
}

TEST_F(LedgerKindsTest, PoolMemoryThatWasNotHandedOverIsReused) {
  const Operation::Item held = Acquire({.bytes = 1, .kind = Kind::kMempool})->items[0];
  const auto begin = [&] {
    return *ledger_.admission()
                .BeginAcquire(session_, {.bytes = 1, .kind = Kind::kMempool})
                ->operation;
  };
  const Operation unmade = begin();
  ledger_.operations().Abort(unmade, /*handed_over=*/false);
  EXPECT_THAT(Drain(ledger_.effects().doomed), ElementsAre(unmade.items[0].segment));
  ledger_.Destroyed(unmade.items[0].segment);
  const Operation made = begin();
  ledger_.operations().Created(made.items[0].segment);
  ledger_.operations().Abort(made, /*handed_over=*/false);
  EXPECT_TRUE(Drain(ledger_.effects().doomed).empty()) << "its pool would not give it back";
  EXPECT_EQ(begin().items[0].segment, made.items[0].segment);
  ledger_.endings().ProcessGone(session_);
  EXPECT_THAT(Drain(ledger_.effects().doomed), ElementsAre(held.segment));
  ledger_.Destroyed(held.segment);
}

TEST_F(LedgerKindsTest, AProcessThatConnectsAgainAndAgainIsNotManySessions) {
  ledger_.tenants().OverrideQuota("a", {{.max_sessions = 2}});
  const SessionDetails process = {.peer = {.pid = 77, .start_time = 5}};
  SegmentId segment{};
  for (uint8_t i = 2; i < 9; ++i) {
    session_ = ledger_.OpenSession("a", process, Secret{i}).value();
    const Operation::Item item = Acquire({.bytes = 1, .kind = Kind::kMempool})->items[0];
    EXPECT_EQ(item.reused, i > 2);
    segment = item.segment;
    ASSERT_EQ(ledger_.leases().Release(session_, {item.lease}), absl::OkStatus());
    ledger_.endings().SocketClosed(session_);
    EXPECT_EQ(ledger_.state().sessions.size(), 2u);  // the fixture's, and the latest of these
  }
  // A process with the same pid and another start time is another process.
  EXPECT_EQ(
      ledger_.OpenSession("a", {.peer = {.pid = 77, .start_time = 6}}, Secret{9}).status().code(),
      StatusCode::kResourceExhausted);
  EXPECT_TRUE(Drain(ledger_.effects().doomed).empty());
  ledger_.endings().ProcessGone(session_);
  EXPECT_THAT(Drain(ledger_.effects().doomed), ElementsAre(segment));
  ledger_.Destroyed(segment);
  EXPECT_EQ(ledger_.state().sessions.size(), 1u);
}

TEST_F(LedgerKindsTest, ALostSegmentIsToldReleasedAndNeverReused) {
  const Operation::Item item = Acquire({.bytes = 1, .kind = Kind::kIpc})->items[0];
  const Secret ticket = *ledger_.leases().Share(session_, item.lease, TicketScope::kAny, Secret{7});
  ledger_.segments().MarkLost({item.segment});
  EXPECT_THAT(Drain(ledger_.effects().orphaned), ElementsAre(session_));
  EXPECT_TRUE(Drain(ledger_.effects().orphaned).empty());
  EXPECT_THAT(ledger_.look().LostLeases(session_), ElementsAre(item.lease));
  EXPECT_EQ(ledger_.operations().BeginOpen(Open("b", 2), {ticket}).status().code(),
            StatusCode::kFailedPrecondition);
  // Charged until it is released, and then given up rather than kept.
  EXPECT_EQ(ledger_.state().charged(1), kGranule);
  EXPECT_EQ(ledger_.leases().Release(session_, {item.lease}), absl::OkStatus());
  EXPECT_THAT(Drain(ledger_.effects().doomed), ElementsAre(item.segment));
  ledger_.Destroyed(item.segment);
  EXPECT_EQ(ledger_.state().charged(1), 0u);
}

// It waits a moment, for memory on its way back, and its other segment would be that of the pool.
TEST_F(LedgerKindsTest, ARequestThatCountedOnALostSegmentIsToldThatThereIsNoRoom) {
  const SessionId other = Open("b", 2);
  const auto others = ledger_.admission().BeginAcquire(other, {.bytes = 14 * kGranule});
  ASSERT_TRUE(others.ok() && others->operation) << others.status();
  const Operation::Item idle = Acquire({.bytes = 1, .kind = Kind::kMempool})->items[0];
  const Operation::Item kept = Acquire({.bytes = 1})->items[0];
  ASSERT_EQ(ledger_.leases().Release(session_, {idle.lease, kept.lease}), absl::OkStatus());
  const auto waits =
      ledger_.admission().BeginAcquire(session_, {.bytes = 1, .kind = Kind::kMempool, .count = 2});
  ASSERT_TRUE(waits.ok() && waits->waiter) << waits.status();
  EXPECT_THAT(Drain(ledger_.effects().doomed), ElementsAre(kept.segment));
  EXPECT_TRUE(ledger_.admission().AdmitWaiting().empty());
  ledger_.segments().MarkLost({idle.segment});
  const auto told = ledger_.admission().AdmitWaiting();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].operation.status().code(), StatusCode::kResourceExhausted);
}

TEST_F(LedgerKindsTest, SegmentThatAnotherTenantHadIsNotReused) {
  const Operation::Item item = Acquire({.bytes = 1, .kind = Kind::kIpc})->items[0];
  const Secret ticket = *ledger_.leases().Share(session_, item.lease, TicketScope::kAny, Secret{7});
  const SessionId other = Open("b", 2);
  const auto opened = ledger_.operations().BeginOpen(other, {ticket});
  ASSERT_TRUE(opened.ok());
  ASSERT_EQ(ledger_.operations().Commit(*opened), absl::OkStatus());
  ASSERT_EQ(ledger_.leases().Release(other, {opened->items[0].lease}), absl::OkStatus());
  ASSERT_EQ(ledger_.leases().Release(session_, {item.lease}), absl::OkStatus());
  // It may have kept the handle, which would open the next holder's data.
  EXPECT_THAT(Drain(ledger_.effects().doomed), ElementsAre(item.segment));
  ledger_.Destroyed(item.segment);
}

TEST_F(LedgerKindsTest, EventsEndWithTheirLeaseOrSession) {
  const Operation::Item item = Acquire({.bytes = 1})->items[0];
  ASSERT_TRUE(ledger_.events().Register(session_, {.lease = item.lease}, "GPU-1", {}).ok());
  ASSERT_TRUE(ledger_.events().Register(session_, {.name = "done"}, "GPU-1", {}).ok());
  const SessionId other = Open("a", 2);
  EXPECT_EQ(ledger_.events().Find(other, {.name = "done"})->size(), 1u);
  EXPECT_EQ(ledger_.events().Register(other, {.name = "done"}, "GPU-1", {}).status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_EQ(ledger_.events().Find(Open("b", 3), {.name = "done"}).status().code(),
            StatusCode::kNotFound);  // another tenant's name
  ledger_.endings().ProcessGone(session_);
  EXPECT_EQ(ledger_.events().Find(other, {.name = "done"}).status().code(), StatusCode::kNotFound);
}

// Segments that only an ended process kept in a pool are also given up in parts.
TEST_F(LedgerKindsTest, AnIdlePoolEndsInParts) {
  const auto made = Acquire({.bytes = kGranule, .kind = Kind::kMempool, .count = 5});
  ASSERT_TRUE(made.ok()) << made.status();
  std::vector<LeaseId> leases;
  for (const Operation::Item& item : made->items) leases.push_back(item.lease);
  ASSERT_TRUE(ledger_.leases().Release(session_, leases).ok());
  EXPECT_TRUE(Drain(ledger_.effects().doomed).empty());
  ledger_.endings().ProcessGone(session_, /*steps=*/2);
  std::vector<size_t> doomed;
  for (; ledger_.endings().HasAny(); ledger_.endings().Continue(/*steps=*/2)) {
    EXPECT_EQ(ledger_.CheckInvariants(), absl::OkStatus());
    doomed.push_back(Drain(ledger_.effects().doomed).size());
  }
  doomed.push_back(Drain(ledger_.effects().doomed).size());
  EXPECT_EQ(doomed, (std::vector<size_t>{2, 2, 1, 0}));
}

}  // namespace
}  // namespace gpumemd
