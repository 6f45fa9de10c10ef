// SPDX-License-Identifier: Apache-2.0
// The broker's heartbeat: a watchdog's sign of life, and the load shown of a running daemon.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/suspension/suspensions.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/device/host_device.h"
#include "daemon/device/pinned_device.h"
#include "daemon/device/testing/fault_injection.h"
#include "daemon/tier/tier_device.h"

namespace gpumemd {
namespace heartbeat_test {

constexpr uint64_t kGranule = 2 << 20;
constexpr absl::Duration kLong = absl::Seconds(30);

// The observer that the broker calls under its mutex.
class Observer : public QuietObserver {
 public:
  Gate gate;

  void QuotaChanged(absl::string_view) override { gate.Pass(); }
};

class BrokerHeartbeatTest : public ::testing::Test {
 protected:
  void Start(absl::Duration every, absl::Duration pause, FaultPlan plan = nullptr) {
    BrokerOptions options;
    std::unique_ptr<Device> device = *MakeHostDevice({.capacity_bytes = 10 * kGranule});
    if (plan != nullptr) device = InjectFaults(std::move(device), std::move(plan));
    options.devices.push_back(std::move(device));
    options.devices.push_back(*MakePinnedDevice({.capacity_bytes = 8 * kGranule}));
    options.devices.push_back(
        *MakeTierDevice({.capacity_bytes = 8 * kGranule, .huge_pages = false}));
    options.random = [this] {
      Secret secret{};
      secret[0] = ++randoms_;
      return secret;
    };
    options.observer = &observer_;
    options.heartbeat = [this](const BrokerLoad& load) {
      absl::MutexLock lock(&mutex_);
      heartbeats_.push_back(load);
    };
    options.heartbeat_interval = every;
    options.heartbeat_pause = pause;
    broker_ = std::make_unique<Broker>(std::move(options));
  }
  size_t heartbeats() {
    absl::MutexLock lock(&mutex_);
    return heartbeats_.size();
  }
  // True if there are `count` heartbeats, now or soon.
  bool AwaitHeartbeats(size_t count, absl::Duration patience = kLong) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&] { return heartbeats_.size() >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), patience);
  }
  // True if a heartbeat reports this load, now or soon.
  bool Await(const BrokerLoad& load) {
    absl::MutexLock lock(&mutex_);
    const auto said = [&] { return !heartbeats_.empty() && heartbeats_.back() == load; };
    return mutex_.AwaitWithTimeout(absl::Condition(&said), kLong);
  }
  absl::StatusOr<std::vector<LeaseView>> Acquire(const Broker::NewSession& session, Kind kind) {
    auto call = broker_->Authenticate(TokenOf(session));
    return broker_->Acquire(*call, {.bytes = kGranule, .kind = kind}, absl::Now() + kLong,
                            [](const Broker::Handover&) { return absl::OkStatus(); });
  }

  Observer observer_;
  uint8_t randoms_ = 0;
  absl::Mutex mutex_;
  std::vector<BrokerLoad> heartbeats_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Broker> broker_;  // destroyed before the objects that it calls
};

TEST_F(BrokerHeartbeatTest, TickComesAtTheStartAndRepeats) {
  Start(absl::Milliseconds(1), absl::Milliseconds(1));
  EXPECT_TRUE(AwaitHeartbeats(20));
}

TEST_F(BrokerHeartbeatTest, TickReportsChangesOnce) {
  Start(absl::InfiniteDuration(), absl::ZeroDuration());
  EXPECT_TRUE(Await({}));
  const auto session = broker_->OpenSession("a", {});
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_TRUE(Await({.sessions = 1}));
  ASSERT_TRUE(Acquire(*session, Kind::kVmm).ok());
  ASSERT_TRUE(Acquire(*session, Kind::kVmm).ok());
  ASSERT_TRUE(Acquire(*session, Kind::kPinned).ok());
  EXPECT_TRUE(Await({.sessions = 1, .charged = 2 * kGranule, .pinned = kGranule}));
  // The ends of those calls are changes too, but report nothing new.
  const absl::Time end = absl::Now() + kLong;
  while (AwaitHeartbeats(heartbeats() + 1, absl::Milliseconds(20))) ASSERT_LT(absl::Now(), end);
}

TEST_F(BrokerHeartbeatTest, TickReportsTheHostTier) {
  Start(absl::InfiniteDuration(), absl::ZeroDuration());
  const auto session = broker_->OpenSession("a", {});
  ASSERT_TRUE(session.ok()) << session.status();
  const auto leases = Acquire(*session, Kind::kVmm);
  ASSERT_TRUE(leases.ok()) << leases.status();
  const Broker::Call call = CallIn(*broker_, *session);
  const auto suspended = broker_->suspensions().Suspend(call, {leases->front().lease}, 0);
  ASSERT_TRUE(suspended.ok()) << suspended.status();
  EXPECT_TRUE(Await({.sessions = 1, .tier = kGranule}));
}

TEST_F(BrokerHeartbeatTest, ChangesWaitForTheirPause) {
  Start(absl::InfiniteDuration(), absl::Hours(1));
  EXPECT_TRUE(Await({}));
  ASSERT_TRUE(broker_->OpenSession("a", {}).ok());
  EXPECT_FALSE(AwaitHeartbeats(2, absl::Milliseconds(20)));
}

TEST_F(BrokerHeartbeatTest, TickContinuesWhileTheDriverHangs) {
  Gate driver;
  Start(absl::Milliseconds(1), absl::Milliseconds(1), [&](const DeviceOp& op) {
    if (op.type == DeviceOp::Type::kCreate) driver.Pass();
    return absl::OkStatus();
  });
  const auto session = broker_->OpenSession("a", {});
  ASSERT_TRUE(session.ok()) << session.status();
  std::thread caller([&] { EXPECT_TRUE(Acquire(*session, Kind::kVmm).ok()); });
  driver.AwaitArrivals(1);
  EXPECT_TRUE(AwaitHeartbeats(heartbeats() + 10));
  driver.Open();
  caller.join();
}

TEST_F(BrokerHeartbeatTest, TickStopsWhileTheMutexIsHeld) {
  Start(absl::Milliseconds(1), absl::Milliseconds(1));
  EXPECT_TRUE(AwaitHeartbeats(2));
  std::thread stuck([&] { (void)broker_->operators().OverrideQuota("a", {}); });
  observer_.gate.AwaitArrivals(1);
  const size_t before = heartbeats();
  EXPECT_FALSE(
      AwaitHeartbeats(before + 2, absl::Milliseconds(50)));  // one may have been on its way
  observer_.gate.Open();
  stuck.join();
  EXPECT_TRUE(AwaitHeartbeats(before + 10));
}

}  // namespace heartbeat_test
}  // namespace gpumemd
