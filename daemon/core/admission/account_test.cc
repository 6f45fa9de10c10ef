// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/account.h"

#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace gpumemd {
namespace {

class AccountTest : public ::testing::Test {
 protected:
  AccountTest() { tenant.SetParent(&device); }

  // Expects that both accounts hold exactly this, all of it in one state.
  void ExpectBoth(uint64_t bytes, uint64_t segments, SegmentState state) {
    for (const Account* account : {&tenant, &device}) {
      EXPECT_EQ(account->charged(), bytes);
      EXPECT_EQ(account->segments(), segments);
      for (size_t i = 0; i < kSegmentStates; ++i) {
        const auto other = static_cast<SegmentState>(i);
        EXPECT_EQ(account->bytes(other), other == state ? bytes : 0) << "state " << i;
        EXPECT_EQ(account->segments(other), other == state ? segments : 0) << "state " << i;
      }
    }
  }

  Account device, tenant;
};

TEST_F(AccountTest, AChargeIsPendingAndRefundsItself) {
  {
    const Charge charge(&tenant, 512);
    EXPECT_EQ(charge.bytes(), 512u);
    EXPECT_EQ(charge.state(), SegmentState::kPending);
    ExpectBoth(512, 1, SegmentState::kPending);
  }
  ExpectBoth(0, 0, SegmentState::kPending);
  EXPECT_EQ(tenant.peak(), 512u);
}

TEST_F(AccountTest, AChargeCountsInFullInEveryState) {
  Charge charge(&tenant, 512);
  for (const auto state : {SegmentState::kLeased, SegmentState::kLingering, SegmentState::kRetained,
                           SegmentState::kRetained, SegmentState::kReleasing}) {
    charge.MoveTo(state);
    EXPECT_EQ(charge.state(), state);
    ExpectBoth(512, 1, state);
  }
}

TEST_F(AccountTest, ADestroyedChargeRefundsTheStateThatItIsIn) {
  std::optional<Charge> charge(std::in_place, &tenant, 512);
  charge->MoveTo(SegmentState::kLingering);
  charge.reset();
  ExpectBoth(0, 0, SegmentState::kLingering);
}

TEST_F(AccountTest, RevocableChargesAreRanked) {
  int32_t low = -1, high = 1;
  Account other;
  other.SetParent(&device);
  const auto ranked = [](const Account& account) {
    std::vector<uint64_t> segments;
    for (const auto& [rank, bytes] : account.to_revoke().ranked()) {
      segments.push_back(ToInt(rank.segment));
    }
    return segments;
  };
  const auto make = [](Account& account, const int32_t& priority, uint64_t id, bool revocable) {
    Charge charge(&account, 10, revocable, {&priority, SegmentId{id}});
    charge.MoveTo(SegmentState::kLeased);
    return charge;
  };
  using Ids = std::vector<uint64_t>;
  Charge first = make(tenant, high, 1, true);
  Charge second = make(tenant, high, 2, true);
  Charge firm = make(tenant, high, 3, false);
  Charge third = make(other, low, 4, true);
  EXPECT_EQ(ranked(device), (Ids{4, 2, 1}));
  EXPECT_EQ(ranked(tenant), (Ids{2, 1}));
  EXPECT_EQ(device.to_revoke().BytesBelow(1), 10u);
  EXPECT_EQ(device.to_revoke().BytesBelow(2), 30u);
  first.SetRevoking(true);
  EXPECT_EQ(ranked(device), (Ids{4, 2}));
  first.SetRevoking(false);
  firm.SetRevocable(true);
  low = 2;
  EXPECT_EQ(ranked(device), (Ids{4, 3, 2, 1})) << "the rank is that of the last change";
  third.Rank();
  EXPECT_EQ(ranked(device), (Ids{3, 2, 1, 4}));
  other.SetParent(&tenant);
  EXPECT_EQ(ranked(tenant), (Ids{3, 2, 1, 4}));
  second.SetStuck();
  first.MoveTo(SegmentState::kReleasing);
  third = Charge();
  EXPECT_EQ(ranked(device), (Ids{3}));
  EXPECT_EQ(ranked(tenant), (Ids{3}));
  other.SetParent(nullptr);
  EXPECT_EQ(ranked(tenant), (Ids{3}));
  EXPECT_EQ(device.to_revoke().BytesBelow(2), 10u);
}

TEST_F(AccountTest, MovingHandsTheChargeOn) {
  Charge from(&tenant, 512);
  from.MoveTo(SegmentState::kLeased);
  {
    const Charge to = std::move(from);
    EXPECT_EQ(to.state(), SegmentState::kLeased);
    EXPECT_EQ(to.bytes(), 512u);
    ExpectBoth(512, 1, SegmentState::kLeased);
  }
  ExpectBoth(0, 0, SegmentState::kLeased);
  from.MoveTo(SegmentState::kRetained);  // NOLINT: it is empty, and charges no account
  EXPECT_EQ(from.bytes(), 0u);
  ExpectBoth(0, 0, SegmentState::kLeased);
}

TEST_F(AccountTest, AssigningRefundsWhatWasThere) {
  Charge charge(&tenant, 512);
  charge = Charge(&tenant, 64);
  ExpectBoth(64, 1, SegmentState::kPending);
  charge = Charge();
  ExpectBoth(0, 0, SegmentState::kPending);
  EXPECT_EQ(tenant.peak(), 576u);  // for a moment it was both
}

TEST_F(AccountTest, AssigningToItselfChangesNothing) {
  Charge charge(&tenant, 512);
  charge.MoveTo(SegmentState::kRetained);
  Charge& itself = charge;
  charge = std::move(itself);
  EXPECT_EQ(charge.bytes(), 512u);
  ExpectBoth(512, 1, SegmentState::kRetained);
}

TEST_F(AccountTest, EmptyChargeChangesNoAccount) {
  Charge empty;
  empty.MoveTo(SegmentState::kLeased);
  EXPECT_EQ(empty.bytes(), 0u);
}

TEST_F(AccountTest, ManyChargesOfSeveralTenantsAddUp) {
  Account other;
  const Charge first(&tenant, 512);
  Charge second(&tenant, 256);
  other.SetParent(&device);
  const Charge foreign(&other, 128);
  second.MoveTo(SegmentState::kLeased);
  EXPECT_EQ(tenant.charged(), 768u);
  EXPECT_EQ(tenant.bytes(SegmentState::kPending), 512u);
  EXPECT_EQ(tenant.bytes(SegmentState::kLeased), 256u);
  EXPECT_EQ(tenant.segments(), 2u);
  EXPECT_EQ(device.charged(), 896u);
  EXPECT_EQ(device.segments(SegmentState::kPending), 2u);
  EXPECT_EQ(other.charged(), 128u);
}

}  // namespace
}  // namespace gpumemd
