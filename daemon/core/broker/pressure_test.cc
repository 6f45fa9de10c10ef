// SPDX-License-Identifier: Apache-2.0
// What holders are asked for while requests wait: pressure, and the revocation of their memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/testing/wait_fixture.h"

namespace gpumemd {
namespace pressure_test {

using ::testing::ElementsAre;
using ::testing::Pair;
using BrokerPressureTest = BrokerWaitFixture;

TEST_F(BrokerPressureTest, HoldersAreAskedAgainWhileARequestWaits) {
  Client a = Open("a"), b = Open("b");
  const std::vector<LeaseId> held = Hold(a, 10);
  ASSERT_EQ(Begin(b, 4, kLong), State::kWaits);
  for (const Pressure& pressure : observer_.AwaitPressures(2)) {
    EXPECT_EQ(pressure.tenant, "");
    EXPECT_EQ(pressure.bytes, 4 * kGranule);
    EXPECT_EQ(pressure.until, b.acquisition->wait_until);
  }
  EXPECT_EQ(broker_->Release(*CallOf(a), held), absl::OkStatus());
  EXPECT_TRUE(End(b).ok());
}

TEST_F(BrokerPressureTest, AClockThatIsSetBackSilencesNone) {
  Client a = Open("a"), first = Open("b"), second = Open("b");
  Hold(a, 10);
  ASSERT_EQ(Begin(first, 4, kLong), State::kWaits);
  observer_.AwaitPressures(1);
  clock_ahead_ = -1000;
  ASSERT_EQ(Begin(second, 4, 2 * kLong), State::kWaits);
  EXPECT_TRUE(observer_.AwaitPressure(
      [&](const Pressure& pressure) { return pressure.until == second.acquisition->wait_until; }));
  for (Client* waits : {&first, &second}) {
    broker_->GiveUp(waits->acquisition);
    EXPECT_TRUE(absl::IsCancelled(End(*waits).status()));
  }
}

// More tenants than the broker remembers as just looked at, and more waits than it ends at once.
TEST_F(BrokerPressureTest, HundredsOfTenantsPressAndTheirWaitsEndInTime) {
  Client a = Open("a");
  Hold(a, 10);
  std::vector<Client> waiting;
  for (int i = 0; i < 300; ++i) {
    waiting.push_back(Open(absl::StrCat("t", i)));
    ASSERT_EQ(Begin(waiting.back(), 1, kLong), State::kWaits);
  }
  const absl::Time last = waiting.back().acquisition->wait_until;
  EXPECT_TRUE(
      observer_.AwaitPressure([&](const Pressure& pressure) { return pressure.until == last; }));
  clock_ahead_ = 1000;
  for (Client& each : waiting) EXPECT_TRUE(absl::IsResourceExhausted(End(each).status()));
}

class LongGraceTest : public BrokerWaitFixture {
 protected:
  LongGraceTest() : BrokerWaitFixture(kLong) {}
};

// Two requests of one tenant that begin together.
TEST_F(LongGraceTest, WaiterForReturningMemoryDoesNotSilenceAnother) {
  broker_->operators().Configure({{"c", {.priority = -1}}}, {});
  Client a = Open("a"), c = Open("c"), first = Open("b"), second = Open("b");
  Hold(a, 6);
  Hold(c, 4, /*revocable=*/true);
  ASSERT_EQ(Begin(first, 4, kLong), State::kWaits);
  ASSERT_EQ(Begin(second, 3, 2 * kLong), State::kWaits);
  EXPECT_TRUE(observer_.AwaitPressure(
      [&](const Pressure& pressure) { return pressure.until == second.acquisition->wait_until; }));
  for (Client* waits : {&first, &second}) {
    broker_->GiveUp(waits->acquisition);
    EXPECT_TRUE(absl::IsCancelled(End(*waits).status()));
  }
}

TEST_F(BrokerPressureTest, WaiterAtItsOwnLimitDoesNotSilenceAnother) {
  broker_->operators().Configure({{"b", {.limit_bytes = 4 * kGranule}}}, {});
  Client a = Open("a"), holds = Open("b"), first = Open("b"), second = Open("b");
  Hold(a, 8);
  Hold(holds, 2);
  // The unused guarantee goes before memory that is not guaranteed, and has to come from others.
  broker_->operators().Configure(
      {{"b", {.limit_bytes = 4 * kGranule, .guarantee_bytes = 3 * kGranule}}}, {});
  ASSERT_EQ(Begin(first, 3, kLong), State::kWaits);
  ASSERT_EQ(Begin(second, 1, kLong), State::kWaits);
  for (const std::string pressed : {"b", ""}) {
    EXPECT_TRUE(observer_.AwaitPressure([&](const Pressure& pressure) {
      return pressure.tenant == pressed;
    })) << pressed;
  }
  for (Client* waits : {&first, &second}) {
    broker_->GiveUp(waits->acquisition);
    EXPECT_TRUE(absl::IsCancelled(End(*waits).status()));
  }
}

TEST_F(BrokerPressureTest, GuaranteeEndsProcessesThatKeepRevocableMemory) {
  broker_->operators().Configure({{"owner", {.guarantee_bytes = 8 * kGranule}}}, {});
  Client scavenger = Open("b"), owner = Open("owner");
  Hold(scavenger, 10, /*revocable=*/true);
  // It need not ask to wait.
  ASSERT_EQ(Begin(owner, 8, absl::ZeroDuration()), State::kWaits);
  EXPECT_THAT(observer_.AwaitRevoked(1), ElementsAre(scavenger.session.id));
  EXPECT_THAT(observer_.AwaitEnded(2),
              ElementsAre(Pair(scavenger.session.id, false), Pair(scavenger.session.id, true)));
  broker_->ProcessGone(scavenger.session.id);
  EXPECT_TRUE(End(owner).ok());
}

TEST_F(BrokerPressureTest, RevocableLeaseSaysSo) {
  Client a = Open("a");
  ASSERT_EQ(Begin(a, 1, absl::ZeroDuration(), /*revocable=*/true), State::kNeedsAThread);
  const auto progress = broker_->Advance(a.acquisition, /*may_block=*/true);
  ASSERT_TRUE(progress.leases.ok());
  EXPECT_TRUE(progress.leases->front().revocable);
  a.call.reset();
}

}  // namespace pressure_test
}  // namespace gpumemd
