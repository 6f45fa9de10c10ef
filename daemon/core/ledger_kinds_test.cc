// What kinds of segments bring to the ledger, by example: sentences, pinned memory, losses,
// events. The model test has the rest.
#include "daemon/core/ledger.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kGranule = 2 << 20;

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
                  .kinds = {Kind::kPinned}}},
                {}, [] { return absl::UnixEpoch(); }) {
    session_ = Open("a", 1);
  }
  void TearDown() override { EXPECT_EQ(ledger_.CheckInvariants(), absl::OkStatus()); }

  SessionId Open(absl::string_view tenant, uint8_t token) {
    return ledger_.OpenSession(tenant, {}, Secret{token}).value();
  }
  absl::StatusOr<Operation> Acquire(const AcquireSpec& spec) {
    auto begun = ledger_.BeginAcquire(session_, spec, /*patient=*/true);
    if (!begun.ok()) return begun.status();
    EXPECT_EQ(ledger_.Commit(**begun), absl::OkStatus());
    return **begun;
  }

  Ledger ledger_;
  SessionId session_{};
};

TEST_F(LedgerKindsTest, ARequestGoesToTheFirstDeviceThatMakesItsKind) {
  EXPECT_EQ(Acquire({.bytes = 1})->device, 0u);
  EXPECT_EQ(Acquire({.bytes = 1, .kind = Kind::kIpc})->device, 1u);
  EXPECT_EQ(Acquire({.bytes = 1, .kind = Kind::kPinned})->device, 2u);
}

TEST_F(LedgerKindsTest, WhatADeviceDoesNotMakeIsRefusedWithWhatItMakes) {
  const auto refused = Acquire({.device_uuid = "GPU-1", .bytes = 1, .kind = Kind::kIpc});
  EXPECT_EQ(refused.status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(refused.status().message(),
            "device GPU-1 does not make segments of kind ipc; it makes vmm, mempool; GPU-2 makes "
            "that kind");
}

TEST_F(LedgerKindsTest, MostFreeIsWhereTheTenantCanGetMost) {
  EXPECT_EQ(Acquire({.bytes = 3 * kGranule, .most_free = true})->device, 0u);
  EXPECT_EQ(Acquire({.bytes = 1, .most_free = true})->device, 1u);
  // A limit on that device, and the first is the better one again.
  ASSERT_EQ(ledger_.SetQuota("a", {.device_limits = {{"GPU-2", 2 * kGranule}}}), absl::OkStatus());
  EXPECT_EQ(Acquire({.bytes = 1, .most_free = true})->device, 0u);
  EXPECT_EQ(Acquire({.device_uuid = "GPU-1", .bytes = 1, .most_free = true}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(LedgerKindsTest, PinnedMemoryHasALimitOfItsOwn) {
  ASSERT_EQ(ledger_.SetQuota("a", {.limit_bytes = kGranule,
                                   .total_limit_bytes = kGranule,
                                   .pinned_limit_bytes = 2 * kGranule}),
            absl::OkStatus());
  EXPECT_TRUE(Acquire({.bytes = 2 * kGranule, .kind = Kind::kPinned}).ok());
  const auto denied = Acquire({.bytes = 1, .kind = Kind::kPinned});
  EXPECT_EQ(denied.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(denied.status().message()), HasSubstr("quota set a --pinned-limit SIZE"));
  EXPECT_TRUE(Acquire({.bytes = kGranule}).ok());  // and is not counted by the others
  EXPECT_EQ(ledger_.GetTenant("a")->charged, kGranule);
}

TEST_F(LedgerKindsTest, APoolIsNotSharedAcrossTenants) {
  const LeaseId lease = Acquire({.bytes = 1, .kind = Kind::kMempool})->items[0].lease;
  const auto refused = ledger_.Share(session_, lease, TicketScope::kAny, Secret{7});
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("use kind vmm or ipc"));
  EXPECT_TRUE(ledger_.Share(session_, lease, TicketScope::kTenant, Secret{7}).ok());
}

TEST_F(LedgerKindsTest, ALostSegmentIsToldReleasedAndNeverReused) {
  const Operation::Item item = Acquire({.bytes = 1, .kind = Kind::kIpc})->items[0];
  const Secret ticket = *ledger_.Share(session_, item.lease, TicketScope::kAny, Secret{7});
  ledger_.MarkLost({item.segment});
  EXPECT_THAT(ledger_.TakeBereaved(), ElementsAre(session_));
  EXPECT_TRUE(ledger_.TakeBereaved().empty());
  EXPECT_THAT(ledger_.LostLeases(session_), ElementsAre(item.lease));
  EXPECT_EQ(ledger_.BeginOpen(Open("b", 2), {ticket}).status().code(),
            StatusCode::kFailedPrecondition);
  // Charged until it is let go of, and then given up rather than kept.
  EXPECT_EQ(ledger_.charged(1), kGranule);
  EXPECT_EQ(ledger_.Release(session_, {item.lease}), absl::OkStatus());
  EXPECT_THAT(ledger_.TakeDoomed(), ElementsAre(item.segment));
  ledger_.Destroyed(item.segment);
  EXPECT_EQ(ledger_.charged(1), 0u);
}

TEST_F(LedgerKindsTest, WhatAnotherTenantHasHadIsNotReused) {
  const Operation::Item item = Acquire({.bytes = 1, .kind = Kind::kIpc})->items[0];
  const Secret ticket = *ledger_.Share(session_, item.lease, TicketScope::kAny, Secret{7});
  const SessionId other = Open("b", 2);
  const auto opened = ledger_.BeginOpen(other, {ticket});
  ASSERT_TRUE(opened.ok());
  ASSERT_EQ(ledger_.Commit(*opened), absl::OkStatus());
  ASSERT_EQ(ledger_.Release(other, {opened->items[0].lease}), absl::OkStatus());
  ASSERT_EQ(ledger_.Release(session_, {item.lease}), absl::OkStatus());
  // It may have kept the handle, which would open what the next holder writes.
  EXPECT_THAT(ledger_.TakeDoomed(), ElementsAre(item.segment));
  ledger_.Destroyed(item.segment);
}

TEST_F(LedgerKindsTest, EventsEndWithTheirLeaseOrSession) {
  const Operation::Item item = Acquire({.bytes = 1})->items[0];
  ASSERT_TRUE(ledger_.RegisterEvent(session_, {.lease = item.lease}, "GPU-1", {}).ok());
  ASSERT_TRUE(ledger_.RegisterEvent(session_, {.name = "done"}, "GPU-1", {}).ok());
  const SessionId other = Open("a", 2);
  EXPECT_EQ(ledger_.GetEvents(other, {.name = "done"})->size(), 1u);
  EXPECT_EQ(ledger_.RegisterEvent(other, {.name = "done"}, "GPU-1", {}).status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_EQ(ledger_.GetEvents(Open("b", 3), {.name = "done"}).status().code(),
            StatusCode::kNotFound);  // another tenant's name
  ledger_.ProcessGone(session_);
  EXPECT_EQ(ledger_.GetEvents(other, {.name = "done"}).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace gpumemd
