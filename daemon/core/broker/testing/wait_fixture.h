// SPDX-License-Identifier: Apache-2.0
// A broker of one small device, clients whose requests wait, and an observer of what they are told.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/core/audit/audit_ring.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/core/broker/views.h"
#include "daemon/device/host_device.h"

namespace gpumemd {

inline constexpr uint64_t kGranule = 2 << 20;
inline constexpr absl::Duration kLong = absl::Seconds(30);

// Records its callbacks; thread-safe.
class RecordingObserver : public QuietObserver {
 public:
  void Pressed(const Pressure& pressure) override {
    absl::MutexLock lock(&mutex_);
    pressures_.push_back(pressure);
  }
  void Revoked(SessionId session) override {
    absl::MutexLock lock(&mutex_);
    revoked_.push_back(session);
  }
  void SuspensionRequested(SessionId session) override {
    absl::MutexLock lock(&mutex_);
    asked_.push_back(session);
  }
  void EndProcess(SessionId session, bool kill) override {
    absl::MutexLock lock(&mutex_);
    ended_.emplace_back(session, kill);
  }

  std::vector<Pressure> AwaitPressures(size_t count) { return Await(pressures_, count); }
  // True if such a pressure comes.
  bool AwaitPressure(const std::function<bool(const Pressure&)>& which) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return std::any_of(pressures_.begin(), pressures_.end(), which); };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), kLong);
  }
  std::vector<SessionId> AwaitRevoked(size_t count) { return Await(revoked_, count); }
  std::vector<SessionId> AwaitAsked(size_t count) { return Await(asked_, count); }
  std::vector<std::pair<SessionId, bool>> AwaitEnded(size_t count) { return Await(ended_, count); }

 private:
  template <typename T>
  std::vector<T> Await(const std::vector<T>& list, size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&] { return list.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&enough), kLong));
    return list;
  }

  absl::Mutex mutex_;
  std::vector<Pressure> pressures_;
  std::vector<SessionId> revoked_;
  std::vector<SessionId> asked_;  // to suspend or to resume
  std::vector<std::pair<SessionId, bool>> ended_;
};

class BrokerWaitFixture : public ::testing::Test {
 protected:
  using State = Broker::Progress::State;

  // One device of ten granules.
  explicit BrokerWaitFixture(absl::Duration grace = absl::Milliseconds(50))
      : BrokerWaitFixture(grace, OneDevice()) {}
  // `observed`: the broker has an observer.
  BrokerWaitFixture(absl::Duration grace, std::vector<std::unique_ptr<Device>> devices,
                    bool observed = true) {
    BrokerOptions options;
    options.devices = std::move(devices);
    options.revocation = {.grace = grace, .kill_after = absl::Milliseconds(50)};
    options.random = [this] {
      Secret secret{};
      secret[0] = static_cast<uint8_t>(++randoms_);
      secret[1] = static_cast<uint8_t>(randoms_ >> 8);
      return secret;
    };
    options.now = [this] { return absl::Now() + absl::Seconds(clock_ahead_.load()); };
    options.observer = observed ? &observer_ : nullptr;
    options.audit = &audit_;
    broker_ = std::make_unique<Broker>(std::move(options));
  }
  static std::vector<std::unique_ptr<Device>> OneDevice() {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(*MakeHostDevice({.capacity_bytes = 10 * kGranule}));
    return devices;
  }
  ~BrokerWaitFixture() override {
    watches_.clear();
    EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus());
  }

  struct Client {
    Broker::NewSession session;
    std::shared_ptr<Broker::Acquisition> acquisition;
    std::unique_ptr<Broker::Call> call;
    std::unique_ptr<absl::Notification> resumed;
  };
  // Opens a session of a new process.
  Client Open(const std::string& tenant) {
    SessionDetails details;
    details.peer.pid = ++pids_;
    return {.session = *broker_->OpenSession(tenant, details)};
  }
  std::unique_ptr<Broker::Call> CallOf(const Client& client) {
    auto call = broker_->Authenticate(TokenOf(client.session));
    return std::make_unique<Broker::Call>(*std::move(call));
  }
  // Opens a session with a watch that accepts requests to suspend and, if so, to demote.
  Client OpenListening(bool demotes = false) {
    Client client = Open("team");
    watches_.push_back(CallOf(client));
    EXPECT_EQ(watches_.back()->BecomeWatch(/*accepts_suspension=*/true, std::nullopt, demotes),
              absl::OkStatus());
    return client;
  }
  using Action = SuspensionRequests::Action;
  using Moved = absl::StatusOr<BrokerOperators::Moved>;
  Moved Move(const Client& client, Action action, absl::Duration patience = kLong,
             absl::string_view tag = "") {
    return broker_->operators().MoveSession(client.session.id, action, tag, absl::Now() + patience,
                                            [] { return false; });
  }
  // Begins an Acquire of this many granules, and returns its state.
  State Begin(Client& client, uint64_t granules, absl::Duration wait, bool revocable = false,
              bool without_pressure = false, uint64_t request_id = 0) {
    return Begin(client,
                 {.bytes = granules * kGranule,
                  .without_pressure = without_pressure,
                  .revocable = revocable,
                  .waits = wait > absl::ZeroDuration(),
                  .request_id = request_id},
                 wait);
  }
  State Begin(Client& client, AcquireSpec spec, absl::Duration wait) {
    client.call = CallOf(client);
    client.resumed = std::make_unique<absl::Notification>();
    client.acquisition = std::make_shared<Broker::Acquisition>();
    client.acquisition->session = client.session.id;
    client.acquisition->spec = std::move(spec);
    client.acquisition->wait_until = absl::Now() + wait;
    client.acquisition->release_deadline = absl::Now() + kLong;
    client.acquisition->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
    client.acquisition->resume = [this, resumed = client.resumed.get()] {
      broker_->views().Count();  // takes the mutex: no resume is called under it
      resumed->Notify();
    };
    return broker_->Advance(client.acquisition, /*may_block=*/false).state;
  }
  // Returns its answer, once it goes on.
  absl::StatusOr<std::vector<LeaseView>> End(Client& client) {
    EXPECT_TRUE(client.resumed->WaitForNotificationWithTimeout(kLong));
    Broker::Progress progress = broker_->Advance(client.acquisition, /*may_block=*/true);
    EXPECT_EQ(progress.state, State::kAnswered);
    client.call.reset();
    return std::move(progress.leases);
  }
  // Begins an Acquire that the clock does not look at before its time is up.
  State BeginQuietly(Client& client, uint64_t granules) {
    return Begin(client, granules, kLong, /*revocable=*/false, /*without_pressure=*/true);
  }
  std::vector<LeaseId> Hold(Client& client, uint64_t granules, bool revocable = false,
                            uint64_t request_id = 0) {
    EXPECT_EQ(Begin(client, granules, absl::ZeroDuration(), revocable, /*without_pressure=*/false,
                    request_id),
              State::kNeedsAThread);
    const auto progress = broker_->Advance(client.acquisition, /*may_block=*/true);
    EXPECT_TRUE(progress.leases.ok()) << progress.leases.status();
    client.call.reset();
    std::vector<LeaseId> ids;
    for (const LeaseView& lease : *progress.leases) ids.push_back(lease.lease);
    return ids;
  }

  std::atomic<int64_t> clock_ahead_ = 0;  // seconds that the broker's clock was set forward
  RecordingObserver observer_;
  AuditRing audit_;
  int randoms_ = 0;
  pid_t pids_ = 0;
  std::unique_ptr<Broker> broker_;
  std::vector<std::unique_ptr<Broker::Call>> watches_;
};

}  // namespace gpumemd
