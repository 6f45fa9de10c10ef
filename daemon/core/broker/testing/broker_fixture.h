// SPDX-License-Identifier: Apache-2.0
// A broker of one device whose calls fail and stall as a test plans, one session, and an observer
// that notes what it is told.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/core/broker/views.h"
#include "daemon/device/host_device.h"
#include "daemon/device/testing/fault_injection.h"

namespace gpumemd::broker_test {

inline constexpr uint64_t kGranule = 2 << 20;
inline constexpr auto kDelivered = [](const Broker::Handover&) { return absl::OkStatus(); };

class NotingObserver : public QuietObserver {
 public:
  void SessionForgotten(SessionId session) override { forgotten.push_back(session); }
  void QuotaChanged(absl::string_view tenant) override { quotas.emplace_back(tenant); }
  void DrainingChanged(bool draining) override { drained.push_back(draining); }
  void Pressed(const Pressure& pressure) override { pressures.push_back(pressure); }
  void Revoked(SessionId session) override { revoked.push_back(session); }
  void EndProcess(SessionId session, bool kill) override { ended.emplace_back(session, kill); }
  std::vector<SessionId> forgotten, revoked;
  std::vector<std::pair<SessionId, bool>> ended;
  std::vector<std::string> quotas;
  std::vector<bool> drained;
  std::vector<Pressure> pressures;
};

class BrokerFixture : public ::testing::Test {
 protected:
  // A device of ten granules; plan_ is asked before each of its operations.
  void SetUp() override {
    BrokerOptions options;
    options.devices.push_back(
        InjectFaults(*MakeHostDevice({.capacity_bytes = 10 * kGranule}),
                     [this](const DeviceOp& op) { return plan_ ? plan_(op) : absl::OkStatus(); }));
    options.random = [this] {
      Secret secret{};
      secret[0] = static_cast<uint8_t>(++randoms_);
      return secret;
    };
    options.observer = &observer_;
    options.now = [this] { return now_.value_or(absl::Now()); };
    broker_ = std::make_unique<Broker>(std::move(options));
    session_ = Open("a");
  }

  void TearDown() override {
    EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus());
    broker_->ProcessGone(session_.id);
  }

  Broker::NewSession Open(const std::string& tenant) {
    auto session = broker_->OpenSession(tenant, {});
    EXPECT_TRUE(session.ok());
    return *session;
  }

  Broker::Call CallOf(const Broker::NewSession& session) { return CallIn(*broker_, session); }

  absl::StatusOr<std::vector<LeaseView>> Acquire(uint64_t granules, uint32_t count = 1,
                                                 absl::Status delivered = absl::OkStatus()) {
    return broker_->Acquire(CallOf(session_), {.bytes = granules * kGranule, .count = count},
                            absl::Now() + absl::Seconds(30), [&](const Broker::Handover& handover) {
                              for (const auto& item : handover.items) EXPECT_GE(item.fd, 0);
                              return delivered;
                            });
  }

  void Release(const std::vector<LeaseView>& leases) {
    std::vector<LeaseId> ids;
    for (const LeaseView& lease : leases) ids.push_back(lease.lease);
    EXPECT_EQ(broker_->Release(CallOf(session_), ids), absl::OkStatus());
  }

  uint64_t Charged() { return broker_->views().Devices(false)[0].charged; }
  // Gives up retained memory, waits until the disposal thread is idle, and returns the charged
  // bytes.
  uint64_t Held() {
    EXPECT_TRUE(broker_->operators().Trim("", "", 0).ok());
    const auto releasing = [&] {
      const auto segments = broker_->views().ListSegments("", "");
      for (const SegmentView& segment : *segments) {
        if (segment.state == SegmentState::kReleasing) return true;
      }
      return false;
    };
    while (releasing()) std::this_thread::yield();
    return Charged();
  }

  // Whatever a plan refers to is a member: the disposal thread asks the plan until the broker is
  // destroyed, after the test's body.
  FaultPlan plan_;
  Gate gate_;
  std::atomic<int> creates_ = 0, destroyed_ = 0, refused_ = 0;
  NotingObserver observer_;
  std::optional<absl::Time> now_;
  int randoms_ = 0;
  std::unique_ptr<Broker> broker_;
  Broker::NewSession session_;
};

}  // namespace gpumemd::broker_test
