// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/account.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/admission/usage.h"
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

TEST_F(AccountTest, AChargeWithoutAnAccountChangesNothing) {
  Charge charge;
  const uint64_t before = tenant.version();
  charge.MarkChanged();
  charge.MoveTo(SegmentState::kLeased);
  EXPECT_EQ(charge.state(), SegmentState::kPending);
  EXPECT_EQ(tenant.version(), before);
}

TEST_F(AccountTest, ThePresentParentAgainChangesNothing) {
  const Charge charge(&tenant, 512);
  const uint64_t before = device.version();
  tenant.SetParent(&device);
  EXPECT_EQ(device.version(), before);
  ExpectBoth(512, 1, SegmentState::kPending);
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

// --- Byte-seconds, by a simulated clock (usage.h) ---------------------------------------

class UsageTest : public ::testing::Test {
 protected:
  UsageTest() {
    for (Account* account : {&device, &team, &tenant}) account->meter().SetClock(&clock);
    team.SetParent(&device);
    tenant.SetParent(&team);
  }

  absl::Duration now = absl::Hours(1);
  const UsageClock clock = [this] { return now; };
  Account device, team, tenant;
};

TEST_F(UsageTest, CountsChargedBytesForAsLongAsTheyAreCharged) {
  now += absl::Hours(1);
  EXPECT_EQ(tenant.byte_seconds(), 0u) << "nothing was charged";
  std::optional<Charge> first(std::in_place, &tenant, 100);
  now += absl::Seconds(10);
  EXPECT_EQ(tenant.byte_seconds(), 1000u);
  const Charge second(&tenant, 50);
  now += absl::Seconds(2);
  EXPECT_EQ(tenant.byte_seconds(), 1300u);
  first.reset();
  now += absl::Seconds(4);
  for (const Account* account : {&tenant, &team, &device}) {
    EXPECT_EQ(account->byte_seconds(), 1500u);
    EXPECT_EQ(account->peak(), 150u);
  }
}

TEST_F(UsageTest, ChangesOfStateCountNothingTwice) {
  Charge charge(&tenant, 100);
  now += absl::Seconds(1);
  charge.MoveTo(SegmentState::kLeased);
  charge.SetRevocable(true);
  now += absl::Seconds(1);
  charge.MoveTo(SegmentState::kReleasing);
  now += absl::Seconds(1);
  EXPECT_EQ(tenant.byte_seconds(), 300u) << "it counts until the driver has it back";
}

TEST_F(UsageTest, KeepsFractionsOfByteSeconds) {
  for (int i = 0; i < 1000; ++i) {
    const Charge charge(&tenant, 1);
    now += absl::Milliseconds(1);
  }
  EXPECT_EQ(tenant.byte_seconds(), 1u);
}

TEST_F(UsageTest, UnderAnotherTenantItCountsThereFromThenOn) {
  Account other;
  other.meter().SetClock(&clock);
  other.SetParent(&device);
  const Charge charge(&tenant, 100);
  now += absl::Seconds(1);
  tenant.SetParent(&other);
  now += absl::Seconds(2);
  EXPECT_EQ(tenant.byte_seconds(), 300u);
  EXPECT_EQ(team.byte_seconds(), 100u);
  EXPECT_EQ(other.byte_seconds(), 200u);
  EXPECT_EQ(device.byte_seconds(), 300u);
}

TEST_F(UsageTest, AClockThatGoesBackTakesNothingAway) {
  Charge charge(&tenant, 100);
  now += absl::Seconds(5);
  const Charge more(&tenant, 1);
  now -= absl::Seconds(3);
  EXPECT_EQ(tenant.byte_seconds(), 500u);
  charge = Charge();
  EXPECT_EQ(tenant.byte_seconds(), 500u);
  now += absl::Seconds(4);
  EXPECT_EQ(tenant.byte_seconds(), 501u);
}

TEST_F(UsageTest, NeitherYearsNorTerabytesOverflow) {
  const Charge charge(&tenant, uint64_t{192} << 30);
  now += absl::Hours(24 * 365);
  EXPECT_EQ(tenant.byte_seconds(), (uint64_t{192} << 30) * 24 * 365 * 3600);
  now += absl::Hours(24 * 365 * 2);
  EXPECT_EQ(tenant.byte_seconds(), UINT64_MAX) << "the figure stays there";
  now += absl::Hours(24 * 365);
  EXPECT_EQ(tenant.byte_seconds(), UINT64_MAX);
}

TEST_F(UsageTest, GoesOnFromAnEarlierDaemonsRecord) {
  DeviceUse record;
  {
    const Charge before(&tenant, 300);
    const Charge charge(&tenant, 100);
    now += absl::Seconds(5);
    record = tenant.use();
    EXPECT_EQ(record.charged, 400u);
    EXPECT_EQ(record.peak, 400u);
    EXPECT_EQ(ByteSeconds(record.byte_ns), 0u) << "as of the last change";
  }
  // The same is charged: as if nothing had happened.
  now += absl::Seconds(5);
  Account same;
  same.meter().SetClock(&clock);
  const Charge restored(&same, 400);
  same.GoOnFrom(record);
  EXPECT_EQ(same.byte_seconds(), 4000u);
  EXPECT_EQ(same.use().at, record.at);
  // Some is lost: until now it counts all the same.
  Account less;
  less.meter().SetClock(&clock);
  const Charge rest(&less, 100);
  less.GoOnFrom(record);
  EXPECT_EQ(less.byte_seconds(), 4000u);
  EXPECT_EQ(less.peak(), 400u);
  now += absl::Seconds(1);
  EXPECT_EQ(less.byte_seconds(), 4100u);
  EXPECT_EQ(same.byte_seconds(), 4400u);
}

TEST_F(UsageTest, NotesChangesOfChargedBytesOnce) {
  UsesChanged changed;
  tenant.meter().NoteIn(&changed, {MadeTenantId{7}, 1});
  { const Charge charge(&tenant, 1); }
  EXPECT_TRUE(changed.keys.empty()) << "no journal is kept";
  changed.kept = true;
  Charge charge(&tenant, 1);
  EXPECT_EQ(changed.keys, std::vector<UsesChanged::Key>({{MadeTenantId{7}, 1}}));
  charge.MoveTo(SegmentState::kLeased);
  EXPECT_EQ(changed.keys.size(), 1u);
  tenant.meter().NoteIn(nullptr, {});
  charge = Charge();
  EXPECT_EQ(changed.keys.size(), 1u);
}

}  // namespace
}  // namespace gpumemd
