// SPDX-License-Identifier: Apache-2.0
// The policy asks sessions to suspend for requests that wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/suspension/suspensions.h"
#include "daemon/core/broker/testing/wait_fixture.h"
#include "daemon/tier/tier_device.h"

namespace gpumemd {
namespace swaps_test {

using ::testing::ElementsAre;
using Cause = SuspensionRequests::Cause;

class BrokerSwapsTest : public BrokerWaitFixture {
 protected:
  explicit BrokerSwapsTest(bool observed = true)
      : BrokerWaitFixture(absl::Milliseconds(50), Devices(), observed) {
    const Quota quota{.swappable = true, .min_residence = absl::ZeroDuration()};
    broker_->operators().Configure({{"a", quota}}, {});
  }
  static std::vector<std::unique_ptr<Device>> Devices() {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(*MakeHostDevice({.capacity_bytes = 10 * kGranule}));
    devices.push_back(*MakeTierDevice({.capacity_bytes = 10 * kGranule, .huge_pages = false}));
    return devices;
  }
  void Serve(const Client& client) {
    watches_.push_back(CallOf(client));
    EXPECT_EQ(watches_.back()->BecomeWatch(/*accepts_suspension=*/true), absl::OkStatus());
  }
};

TEST_F(BrokerSwapsTest, AWaiterGetsWhatASessionSuspends) {
  Client a = Open("a"), b = Open("b");
  const std::vector<LeaseId> leases = Hold(a, 10);
  ASSERT_EQ(BeginQuietly(b, 4), State::kWaits);
  Serve(a);  // also one that begins to serve later is asked
  EXPECT_THAT(observer_.AwaitAsked(1), ElementsAre(a.session.id));
  const auto asked = broker_->suspensions().Requested(*CallOf(a));
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->cause, Cause::kWaiter);
  EXPECT_EQ(asked->action, SuspensionRequests::Action::kSuspend);
  const auto suspended = broker_->suspensions().Suspend(*CallOf(a), leases, 0);
  ASSERT_TRUE(suspended.ok()) << suspended.status();
  EXPECT_TRUE(End(b).ok());
  EXPECT_FALSE(broker_->suspensions().Requested(*CallOf(a)).has_value());
  const Measures measures = broker_->views().Measure();
  EXPECT_EQ(measures.swaps.asked_for_waiters, 1u);
  EXPECT_EQ(measures.swaps.suspended, 1u);
}

TEST_F(BrokerSwapsTest, ARefusalOfTheTierEndsTheRequest) {
  Client a = Open("a"), b = Open("b"), fills = Open("fills");
  const std::vector<LeaseId> other = Hold(fills, 2);
  const std::vector<LeaseId> leases = Hold(a, 8);
  Serve(a);
  ASSERT_EQ(BeginQuietly(b, 4), State::kWaits);
  EXPECT_THAT(observer_.AwaitAsked(1), ElementsAre(a.session.id));
  // The tier has less room by now.
  broker_->operators().Configure({{"a", {.tier_limit_bytes = kGranule, .swappable = true}}}, {});
  EXPECT_TRUE(
      absl::IsResourceExhausted(broker_->suspensions().Prepare(*CallOf(a), leases).status()));
  EXPECT_FALSE(broker_->suspensions().Requested(*CallOf(a)).has_value());
  EXPECT_EQ(broker_->views().Measure().swaps.refused, 1u);
  EXPECT_EQ(broker_->Release(*CallOf(fills), other), absl::OkStatus());
  EXPECT_EQ(broker_->Release(*CallOf(a), leases), absl::OkStatus());
  EXPECT_TRUE(End(b).ok());
}

class UnobservedSwapsTest : public BrokerSwapsTest {
 protected:
  UnobservedSwapsTest() : BrokerSwapsTest(/*observed=*/false) {}
};

TEST_F(UnobservedSwapsTest, RequestsAreThereForClientsThatAsk) {
  Client a = Open("a"), b = Open("b");
  const std::vector<LeaseId> leases = Hold(a, 10);
  ASSERT_EQ(BeginQuietly(b, 4), State::kWaits);
  Serve(a);
  const absl::Time end = absl::Now() + kLong;
  while (!broker_->suspensions().Requested(*CallOf(a)) && absl::Now() < end) {
    std::this_thread::yield();
  }
  const auto asked = broker_->suspensions().Requested(*CallOf(a));
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->cause, Cause::kWaiter);
  ASSERT_TRUE(broker_->suspensions().Suspend(*CallOf(a), leases, 0).ok());
  EXPECT_TRUE(End(b).ok());
  // An operator's.
  EXPECT_TRUE(absl::IsDeadlineExceeded(Move(a, Action::kResume, absl::ZeroDuration()).status()));
}

}  // namespace swaps_test
}  // namespace gpumemd
