// Requests that wait for their turn: no thread waits with them, and the clock ends waits on time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/denial.h"
#include "daemon/device/host_device.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using State = Broker::Progress::State;

constexpr uint64_t kGranule = 2 << 20;
constexpr absl::Duration kLong = absl::Seconds(30);

// Records its callbacks; thread-safe.
class Observer : public BrokerObserver {
 public:
  void SessionForgotten(SessionId) override {}
  void QuotaChanged(absl::string_view) override {}
  void DrainingChanged(bool) override {}
  void SegmentsLost(SessionId) override {}
  void ContextLost(const std::string&, size_t) override {}
  void Pressed(const Pressure& pressure) override {
    absl::MutexLock lock(&mutex_);
    pressures_.push_back(pressure);
  }
  void Revoked(SessionId session) override {
    absl::MutexLock lock(&mutex_);
    revoked_.push_back(session);
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
  std::vector<std::pair<SessionId, bool>> ended_;
};

class BrokerWaitTest : public ::testing::Test {
 protected:
  // One device of ten granules.
  explicit BrokerWaitTest(absl::Duration grace = absl::Milliseconds(50)) {
    BrokerOptions options;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = 10 * kGranule}));
    options.revocation = {.grace = grace, .kill_after = absl::Milliseconds(50)};
    options.random = [this] {
      Secret secret{};
      secret[0] = static_cast<uint8_t>(++randoms_);
      return secret;
    };
    options.observer = &observer_;
    broker_ = std::make_unique<Broker>(std::move(options));
  }
  ~BrokerWaitTest() override { EXPECT_EQ(broker_->CheckInvariants(), absl::OkStatus()); }

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
    auto call = broker_->Authenticate(
        absl::string_view(reinterpret_cast<const char*>(client.session.token.data()), 32));
    return std::make_unique<Broker::Call>(*std::move(call));
  }
  // Begins an Acquire of this many granules, and returns its state.
  State Begin(Client& client, uint64_t granules, absl::Duration wait, bool revocable = false,
              bool without_pressure = false, uint64_t request_id = 0) {
    client.call = CallOf(client);
    client.resumed = std::make_unique<absl::Notification>();
    client.acquisition = std::make_shared<Broker::Acquisition>();
    client.acquisition->session = client.session.id;
    client.acquisition->spec = {.bytes = granules * kGranule,
                                .without_pressure = without_pressure,
                                .revocable = revocable,
                                .waits = wait > absl::ZeroDuration(),
                                .request_id = request_id};
    client.acquisition->wait_until = absl::Now() + wait;
    client.acquisition->patient_until = absl::Now() + kLong;
    client.acquisition->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
    client.acquisition->resume = [this, resumed = client.resumed.get()] {
      broker_->Count();  // takes the mutex: no resume is called under it
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

  Observer observer_;
  int randoms_ = 0;
  pid_t pids_ = 0;
  std::unique_ptr<Broker> broker_;
};

TEST_F(BrokerWaitTest, AReleaseLetsInWhoWaits) {
  Client a = Open("a"), b = Open("b");
  const std::vector<LeaseId> held = Hold(a, 10);
  ASSERT_EQ(Begin(b, 4, kLong), State::kWaits);
  EXPECT_EQ(broker_->ListWaiting("", "")->size(), 1u);
  EXPECT_EQ(broker_->Release(*CallOf(a), held), absl::OkStatus());
  const auto leases = End(b);
  ASSERT_TRUE(leases.ok()) << leases.status();
  EXPECT_EQ(leases->front().bytes, 4 * kGranule);
  EXPECT_TRUE(broker_->ListWaiting("", "")->empty());
}

// The next daemon is to answer them.
TEST_F(BrokerWaitTest, ParkedRequestsGetNeitherATurnNorAnAnswer) {
  Client a = Open("a"), b = Open("b"), c = Open("c");
  const std::vector<LeaseId> held = Hold(a, 10);
  ASSERT_EQ(Begin(b, 4, kLong), State::kWaits);
  EXPECT_FALSE(broker_->AwaitCalls(absl::Now()));
  broker_->Park();
  // Neither a waiting nor a new request gets the memory that comes free.
  EXPECT_EQ(broker_->Release(*CallOf(a), held), absl::OkStatus());
  ASSERT_EQ(Begin(c, 1, absl::ZeroDuration()), State::kWaits);
  EXPECT_TRUE(broker_->AwaitCalls(absl::Now() + kLong)) << "they hold up the end";
  EXPECT_FALSE(b.resumed->HasBeenNotified());
  EXPECT_FALSE(c.resumed->HasBeenNotified());
  for (Client* parked : {&b, &c}) {  // their connections end
    broker_->GiveUp(parked->acquisition);
    EXPECT_EQ(End(*parked).status().code(), absl::StatusCode::kCancelled);
  }
  EXPECT_TRUE(broker_->AwaitCalls(absl::Now()));
}

TEST_F(BrokerWaitTest, AProcessThatDiesLetsInWhoWaits) {
  Client a = Open("a"), b = Open("b");
  Hold(a, 10);
  ASSERT_EQ(Begin(b, 10, kLong), State::kWaits);
  broker_->SocketClosed(a.session.id);
  EXPECT_FALSE(b.resumed->HasBeenNotified()) << "its process may still map it";
  broker_->ProcessGone(a.session.id);
  EXPECT_TRUE(End(b).ok());
}

TEST_F(BrokerWaitTest, WhoWaitsInVainIsToldWhatStoodInTheWay) {
  Client a = Open("a"), b = Open("b");
  Hold(a, 10);
  ASSERT_EQ(Begin(b, 4, absl::Milliseconds(1)), State::kWaits);
  b.acquisition->spec.waits = true;
  const absl::Status status = End(b).status();
  const auto denial = DenialOf(status);
  ASSERT_TRUE(denial.has_value()) << status;
  EXPECT_EQ(denial->cause, Denial::Cause::kCapacity);
  EXPECT_EQ(broker_->GetTenant("b")->denials, 1u);
}

// Holds for requests that wait and for those that do not.
TEST_F(BrokerWaitTest, OthersAreNamedToOperatorsAndAsTheSettingSays) {
  broker_->Configure({{"team", {}}, {"b", {.parent = "team"}}, {"c", {.parent = "team"}}}, {});
  Client a = Open("a"), b = Open("b"), c = Open("c");
  Hold(a, 7);
  Hold(c, 3);
  const auto names = [](const absl::Status& status) {
    std::vector<std::string> named;
    const auto denial = DenialOf(status);
    EXPECT_TRUE(denial.has_value()) << status;
    if (!denial) return named;
    for (const auto& holder : denial->holders) named.push_back(holder.tenant);
    // The message is made from the same data.
    const bool told = absl::StrContains(status.message(), "a 14.00 MiB");
    EXPECT_EQ(told, denial->holders.size() == 2) << status;
    return named;
  };
  const auto denied_at_once = [&] {
    Client other = Open("b");
    return broker_
        ->Acquire(*CallOf(other), {.bytes = kGranule}, absl::InfiniteFuture(),
                  [](const Broker::Handover&) { return absl::OkStatus(); })
        .status();
  };
  const auto denied_later = [&] {
    Client other = Open("b");
    EXPECT_EQ(Begin(other, 4, absl::Milliseconds(1)), State::kWaits);
    const auto waiting = broker_->ListWaiting("", "");
    if (waiting.ok() && !waiting->empty()) {
      EXPECT_EQ(waiting->front().blocked_by.holders.size(), 2u);
    }
    return End(other).status();
  };
  EXPECT_THAT(names(denied_at_once()), ElementsAre("c")) << "the default";
  EXPECT_THAT(names(denied_later()), ElementsAre("c"));
  broker_->SetHoldersShown(HoldersShown::kAll);
  EXPECT_THAT(names(denied_at_once()), ElementsAre("a", "c"));
  EXPECT_THAT(names(denied_later()), ElementsAre("a", "c"));
  broker_->SetHoldersShown(HoldersShown::kNone);
  EXPECT_THAT(names(denied_at_once()), IsEmpty());
  EXPECT_THAT(names(denied_later()), IsEmpty());
}

TEST_F(BrokerWaitTest, AClientThatIsGoneWaitsNoLonger) {
  Client a = Open("a"), b = Open("b"), c = Open("c");
  const std::vector<LeaseId> held = Hold(a, 10);
  ASSERT_EQ(Begin(b, 10, kLong), State::kWaits);
  ASSERT_EQ(Begin(c, 10, kLong), State::kWaits);
  broker_->GiveUp(b.acquisition);
  EXPECT_TRUE(absl::IsCancelled(End(b).status()));
  broker_->GiveUp(b.acquisition);  // no harm
  EXPECT_EQ(broker_->GetTenant("b")->denials, 0u);
  EXPECT_EQ(broker_->Release(*CallOf(a), held), absl::OkStatus());
  EXPECT_TRUE(End(c).ok());
}

TEST_F(BrokerWaitTest, WhatIsGrantedToAClientThatIsGoneGoesBack) {
  Client a = Open("a"), b = Open("b");
  // Between its grant and its answer; and before it would begin to wait.
  ASSERT_EQ(Begin(a, 10, kLong), State::kNeedsAThread);
  broker_->GiveUp(a.acquisition);
  EXPECT_TRUE(
      absl::IsCancelled(broker_->Advance(a.acquisition, /*may_block=*/true).leases.status()));
  a.call.reset();
  EXPECT_EQ(broker_->GetTenant("a")->devices[0].leased, 0u);
  EXPECT_TRUE(broker_->Trim("", "", 0).ok());  // it was retained
  Hold(a, 10);
  b.acquisition = std::make_shared<Broker::Acquisition>();
  b.acquisition->session = b.session.id;
  b.acquisition->spec = {.bytes = kGranule, .waits = true};
  b.call = CallOf(b);
  broker_->GiveUp(b.acquisition);
  EXPECT_TRUE(
      absl::IsCancelled(broker_->Advance(b.acquisition, /*may_block=*/false).leases.status()));
  EXPECT_TRUE(broker_->ListWaiting("", "")->empty());
  b.call.reset();
}

TEST_F(BrokerWaitTest, ASessionThatEndsWaitsNoLonger) {
  Client a = Open("a"), b = Open("b");
  Hold(a, 10);
  ASSERT_EQ(Begin(b, 10, kLong), State::kWaits);
  broker_->SocketClosed(b.session.id);
  EXPECT_TRUE(absl::IsAborted(End(b).status()));
}

TEST_F(BrokerWaitTest, DrainingEndsAllWaits) {
  Client a = Open("a"), b = Open("b");
  Hold(a, 10);
  ASSERT_EQ(Begin(b, 10, kLong), State::kWaits);
  broker_->SetDraining(true);
  EXPECT_TRUE(absl::IsUnavailable(End(b).status()));
}

TEST_F(BrokerWaitTest, AHigherLimitLetsInWhoWaits) {
  broker_->Configure({{"b", {.limit_bytes = 2 * kGranule}}}, {});
  Client b = Open("b"), other = Open("b");
  Hold(other, 2);
  ASSERT_EQ(Begin(b, 2, kLong), State::kWaits);
  EXPECT_TRUE(broker_->OverrideQuota("b", {.limit_bytes = 4 * kGranule}).ok());
  EXPECT_TRUE(End(b).ok());
}

TEST_F(BrokerWaitTest, MemoryPastTheBrokerEndsTheWaitAtOnce) {
  Client a = Open("a"), b = Open("b");
  Hold(a, 10);
  ASSERT_EQ(BeginQuietly(b, 4), State::kWaits);
  const std::string device = broker_->Devices(/*ask_driver=*/false)[0].info.uuid;
  broker_->SetUnbrokered({{b.session.id, device, kGranule, /*denies=*/true}});
  ASSERT_TRUE(b.resumed->HasBeenNotified());
  const auto denial = DenialOf(End(b).status());
  ASSERT_TRUE(denial.has_value());
  EXPECT_EQ(denial->cause, Denial::Cause::kUnbrokered);
}

// A session whose client asks again, for something else, loses what it was granted. Others get that
// even if the new request fails.
TEST_F(BrokerWaitTest, WhatARequestMadeAgainEndsServesOthersThoughItFails) {
  const auto resume = [&](Client& client) {
    PeerIdentity peer;
    peer.pid = pids_;
    const absl::string_view token(reinterpret_cast<const char*>(client.session.token.data()), 32);
    ASSERT_TRUE(broker_->Resume(token, peer).ok());
    ASSERT_TRUE(broker_->Reconcile(token, {}, {7}).ok());
  };
  for (const bool attach : {false, true}) {
    Client b = Open("b"), a = Open("a");
    const std::vector<LeaseId> held =
        Hold(a, 10, /*revocable=*/false, /*request_id=*/attach ? 0 : 7);
    if (attach) {
      ASSERT_TRUE(broker_->Publish(*CallOf(a), {.name = "w", .leases = held}, "").ok());
      auto first = std::make_shared<Broker::Attachment>();
      first->session = a.session.id;
      first->spec = {.name = "w", .request_id = 7};
      first->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
      ASSERT_TRUE(broker_->Advance(first, /*may_block=*/true).attached.ok());
      ASSERT_EQ(broker_->Release(*CallOf(a), held), absl::OkStatus());
      ASSERT_TRUE(broker_->Unpublish("a/w").ok());
    }
    resume(a);
    ASSERT_EQ(BeginQuietly(b, 4), State::kWaits);
    const auto call = CallOf(a);  // its end would also serve the queue
    if (attach) {
      auto again = std::make_shared<Broker::Attachment>();
      again->session = a.session.id;
      again->spec = {.name = "w", .request_id = 7};
      EXPECT_TRUE(absl::IsNotFound(broker_->Advance(again, /*may_block=*/true).attached.status()));
    } else {
      const auto deliver = [](const Broker::Handover&) { return absl::OkStatus(); };
      EXPECT_TRUE(absl::IsNotFound(
          broker_->Open(*call, {Secret{}, Secret{}}, /*revocable=*/false, 7, deliver).status()));
    }
    const auto leases = End(b);
    ASSERT_TRUE(leases.ok()) << leases.status();
    EXPECT_EQ(broker_->Release(*CallOf(b), {leases->front().lease}), absl::OkStatus());
    ASSERT_TRUE(broker_->Trim("", "", 0).ok());
  }
}

TEST_F(BrokerWaitTest, WhoCouldHelpIsAskedAgainWhileSomebodyWaits) {
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

class LongGraceTest : public BrokerWaitTest {
 protected:
  LongGraceTest() : BrokerWaitTest(kLong) {}
};

// Two requests of one tenant that begin together.
TEST_F(LongGraceTest, OneThatWaitsForWhatIsOnItsWayDoesNotSilenceAnother) {
  broker_->Configure({{"c", {.priority = -1}}}, {});
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

TEST_F(BrokerWaitTest, NorDoesOneThatOnlyItsOwnTenantCanHelp) {
  broker_->Configure({{"b", {.limit_bytes = 4 * kGranule}}}, {});
  Client a = Open("a"), holds = Open("b"), first = Open("b"), second = Open("b");
  Hold(a, 8);
  Hold(holds, 2);
  // The unused guarantee goes before memory that is not guaranteed, and has to come from others.
  broker_->Configure({{"b", {.limit_bytes = 4 * kGranule, .guarantee_bytes = 3 * kGranule}}}, {});
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

TEST_F(BrokerWaitTest, AGuaranteeEndsProcessesThatKeepRevocableMemory) {
  broker_->Configure({{"owner", {.guarantee_bytes = 8 * kGranule}}}, {});
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

TEST_F(BrokerWaitTest, WhatIsRevocableSaysSo) {
  Client a = Open("a");
  ASSERT_EQ(Begin(a, 1, absl::ZeroDuration(), /*revocable=*/true), State::kNeedsAThread);
  const auto progress = broker_->Advance(a.acquisition, /*may_block=*/true);
  ASSERT_TRUE(progress.leases.ok());
  EXPECT_TRUE(progress.leases->front().revocable);
  a.call.reset();
}

}  // namespace
}  // namespace gpumemd
