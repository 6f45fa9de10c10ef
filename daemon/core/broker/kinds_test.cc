// SPDX-License-Identifier: Apache-2.0
// Kinds that live in a context: the broker hands over each pool once, and reports losses.
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/denial.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace kinds_test {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kGranule = 2 << 20;

// A device whose context a test can lose. It has no memory: its users only look at numbers.
class ContextDevice : public Device {
 public:
  explicit ContextDevice(std::string uuid = "GPU-1")
      : info_{.uuid = std::move(uuid),
              .capacity_bytes = 16 * kGranule,
              .granularity_bytes = kGranule,
              .kinds = {Kind::kIpc, Kind::kMempool}} {}

  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec) override {
    specs.push_back(spec);
    if (full) return absl::ResourceExhaustedError("CUDA_ERROR_OUT_OF_MEMORY");
    return std::make_unique<Memory>(context_, poolless ? Kind::kIpc : spec.kind, pool);
  }
  absl::StatusOr<uint64_t> DriverFreeBytes() const override { return 0; }
  void OnContextLost(std::function<void()> on_lost) override { on_lost_ = std::move(on_lost); }

  void Lose() {
    LoseUntold();
    TellOfLoss();
  }
  void LoseUntold() { *std::exchange(context_, std::make_shared<std::atomic<bool>>(false)) = true; }
  void TellOfLoss() { on_lost_(); }

  std::vector<CreateSpec> specs;
  uint64_t pool = 7;  // the pool of memory that is made
  bool full = false;
  bool poolless = false;  // memory of kind mempool has lost its pool by the time it is made

 private:
  class Memory : public Allocation {
   public:
    Memory(std::shared_ptr<std::atomic<bool>> lost, Kind kind, uint64_t pool)
        : lost_(std::move(lost)), kind_(kind), pool_(pool) {}
    std::optional<ExportData> export_data() const override { return ExportData{1, 2, 3}; }
    std::optional<ExportedPool> pool() const override {
      if (kind_ != Kind::kMempool) return std::nullopt;
      return ExportedPool{.id = pool_, .fd = STDIN_FILENO};
    }
    bool lost() const override { return *lost_; }

   private:
    const std::shared_ptr<std::atomic<bool>> lost_;
    const Kind kind_;
    const uint64_t pool_;
  };

  const DeviceInfo info_;
  std::shared_ptr<std::atomic<bool>> context_ = std::make_shared<std::atomic<bool>>(false);
  std::function<void()> on_lost_;
};

class Observer : public QuietObserver {
 public:
  void SessionForgotten(SessionId session) override { forgotten.push_back(session); }
  void SegmentsLost(SessionId session) override { orphaned.push_back(session); }
  void Revoked(SessionId session) override { revoked.push_back(session); }
  void EndProcess(SessionId session, bool kill) override { ended.emplace_back(session, kill); }
  void ContextLost(const std::string& uuid, size_t segments) override {
    losses.emplace_back(uuid, segments);
  }
  std::vector<std::pair<std::string, size_t>> losses;
  std::vector<SessionId> orphaned;
  std::vector<SessionId> forgotten, revoked;
  std::vector<std::pair<SessionId, bool>> ended;
};

class BrokerKindsTest : public testing::Test {
 protected:
  BrokerKindsTest() {
    auto device = std::make_unique<ContextDevice>();
    device_ = device.get();
    BrokerOptions options;
    options.devices.push_back(std::move(device));
    options.random = [this] { return Secret{++randoms_}; };
    options.observer = &observer_;
    broker_ = std::make_unique<Broker>(std::move(options));
    broker_->operators().Configure({{"a", {.limit_bytes = 4 * kGranule}}}, {});
  }
  void TearDown() override { EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus()); }

  Broker::NewSession Open() { return broker_->OpenSession("a", {}).value(); }
  Broker::Call CallOf(const Broker::NewSession& session) { return CallIn(*broker_, session); }
  // Returns the handover of an Acquire. Calls `meanwhile` just before it is sent.
  absl::StatusOr<Broker::Handover> Acquire(
      const Broker::NewSession& session, Kind kind, std::function<void()> meanwhile = [] {}) {
    Broker::Handover handed;
    auto leases = broker_->Acquire(CallOf(session), {.bytes = 1, .kind = kind},
                                   absl::InfiniteFuture(), [&](const Broker::Handover& handover) {
                                     meanwhile();
                                     handed = handover;
                                     return absl::OkStatus();
                                   });
    if (!leases.ok()) return leases.status();
    return handed;
  }
  std::vector<uint64_t> PoolsOf(const Broker::Handover& handover) {
    std::vector<uint64_t> ids;
    for (const ExportedPool& pool : handover.pools) ids.push_back(pool.id);
    return ids;
  }

  Observer observer_;
  uint8_t randoms_ = 0;
  ContextDevice* device_;
  std::unique_ptr<Broker> broker_;
};

TEST_F(BrokerKindsTest, APoolsDescriptorIsSentOnceInASession) {
  const Broker::NewSession session = Open();
  const auto first = Acquire(session, Kind::kMempool);
  EXPECT_THAT(PoolsOf(*first), ElementsAre(7));
  EXPECT_EQ(first->items[0].lease.pool_id, 7u);
  EXPECT_EQ(first->items[0].fd, -1);
  EXPECT_EQ(first->items[0].lease.export_data, (ExportData{1, 2, 3}));
  EXPECT_THAT(PoolsOf(*Acquire(session, Kind::kMempool)), IsEmpty());
  EXPECT_THAT(PoolsOf(*Acquire(session, Kind::kIpc)), IsEmpty());
  EXPECT_THAT(PoolsOf(*Acquire(Open(), Kind::kMempool)), ElementsAre(7));
}

// It holds no other request up: what a context takes says little about the memory that there is.
TEST_F(BrokerKindsTest, ADriverWithoutRoomForAContextIsNotWaitedFor) {
  device_->full = true;
  const auto refused = broker_->Acquire(
      CallOf(Open()), {.bytes = 1, .kind = Kind::kIpc, .waits = true},
      absl::Now() + absl::Seconds(5), [](const Broker::Handover&) { return absl::OkStatus(); });
  const auto denial = DenialOf(refused.status());
  ASSERT_TRUE(denial.has_value()) << refused.status();
  EXPECT_EQ(denial->cause, Denial::Cause::kDriver);
  EXPECT_EQ(broker_->views().GetTenant("a")->devices[0].obtainable, 4 * kGranule);
}

TEST_F(BrokerKindsTest, SegmentsOfOneCallShareTheirPoolsDescriptor) {
  std::vector<uint64_t> pools;
  const auto leases =
      broker_->Acquire(CallOf(Open()), {.bytes = 1, .kind = Kind::kMempool, .count = 2},
                       absl::InfiniteFuture(), [&](const Broker::Handover& handover) {
                         EXPECT_EQ(handover.items.size(), 2u);
                         pools = PoolsOf(handover);
                         return absl::OkStatus();
                       });
  ASSERT_TRUE(leases.ok()) << leases.status();
  EXPECT_THAT(pools, ElementsAre(7));
}

TEST_F(BrokerKindsTest, ALaterPoolsDescriptorIsSentOnceToo) {
  const Broker::NewSession session = Open();
  ASSERT_TRUE(Acquire(session, Kind::kMempool).ok());
  device_->pool = 8;
  EXPECT_THAT(PoolsOf(*Acquire(session, Kind::kMempool)), ElementsAre(8));
  EXPECT_THAT(PoolsOf(*Acquire(session, Kind::kMempool)), IsEmpty());
}

TEST_F(BrokerKindsTest, AClientThatReconnectsDuringACallIsSentThePoolAgain) {
  const PeerIdentity peer = {.pid = 77, .start_time = 5};
  const Broker::NewSession session = broker_->OpenSession("a", {.peer = peer}).value();
  const auto first = Acquire(session, Kind::kMempool,
                             [&] { EXPECT_TRUE(broker_->Resume(TokenOf(session), peer).ok()); });
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(broker_->Reconcile(TokenOf(session), {first->items[0].lease.lease}, {}).ok());
  EXPECT_THAT(PoolsOf(*Acquire(session, Kind::kMempool)), ElementsAre(7));
}

TEST_F(BrokerKindsTest, ASessionThatIsReplacedIsForgottenAtOnce) {
  const SessionDetails process = {.peer = {.pid = 77, .start_time = 5}};
  const Broker::NewSession first = broker_->OpenSession("a", process).value();
  const auto made = Acquire(first, Kind::kMempool);
  ASSERT_EQ(broker_->Release(CallOf(first), {made->items[0].lease.lease}), absl::OkStatus());
  broker_->SocketClosed(first.id);
  EXPECT_THAT(observer_.forgotten, IsEmpty()) << "its process has the pool open";
  ASSERT_TRUE(broker_->OpenSession("a", process).ok());
  EXPECT_THAT(observer_.forgotten, ElementsAre(first.id));
}

TEST_F(BrokerKindsTest, APoolIsMadeForTheTenantAndItsLimit) {
  ASSERT_TRUE(Acquire(Open(), Kind::kMempool).ok());
  EXPECT_EQ(device_->specs.back().tenant, "a");
  EXPECT_EQ(device_->specs.back().limit_bytes, 4 * kGranule);
}

TEST_F(BrokerKindsTest, HoldersOfLostMemoryAreTold) {
  const Broker::NewSession holder = Open(), other = Open();
  const auto held = Acquire(holder, Kind::kIpc);
  ASSERT_TRUE(held.ok());
  device_->Lose();
  EXPECT_THAT(observer_.orphaned, ElementsAre(holder.id));
  EXPECT_THAT(observer_.losses, ElementsAre(std::pair<std::string, size_t>("GPU-1", 1)));
  EXPECT_THAT(broker_->LostLeases(CallOf(holder)), ElementsAre(held->items[0].lease.lease));
  EXPECT_THAT(broker_->LostLeases(CallOf(other)), IsEmpty());
  // The next segment lives in a new context.
  ASSERT_TRUE(Acquire(other, Kind::kIpc).ok());
  EXPECT_THAT(broker_->LostLeases(CallOf(other)), IsEmpty());
}

TEST_F(BrokerKindsTest, LossDuringAHandoverIsReported) {
  const Broker::NewSession session = Open();
  ASSERT_TRUE(Acquire(session, Kind::kIpc, [this] { device_->Lose(); }).ok());
  EXPECT_THAT(observer_.orphaned, ElementsAre(session.id));
}

// It is made again some times.
TEST_F(BrokerKindsTest, MemoryThatIsLostBeforeItIsHandedOverIsNotGranted) {
  device_->poolless = true;
  const Broker::NewSession session = Open();
  EXPECT_TRUE(absl::IsUnavailable(Acquire(session, Kind::kMempool).status()));
  EXPECT_GT(device_->specs.size(), 1u);
  EXPECT_THAT(observer_.orphaned, IsEmpty());
  device_->poolless = false;
  EXPECT_TRUE(Acquire(session, Kind::kMempool).ok());
}

TEST_F(BrokerKindsTest, RetainedSegmentsThatAreLostAreNotReused) {
  const Broker::NewSession session = Open();
  const auto released = Acquire(session, Kind::kIpc);
  ASSERT_EQ(broker_->Release(CallOf(session), {released->items[0].lease.lease}), absl::OkStatus());
  device_->Lose();
  const auto next = Acquire(session, Kind::kIpc);
  EXPECT_FALSE(next->items[0].lease.reused);
  EXPECT_NE(next->items[0].lease.segment, released->items[0].lease.segment);
  EXPECT_THAT(observer_.orphaned, IsEmpty());
}

// The device has not told of the loss yet.
TEST_F(BrokerKindsTest, RetainedSegmentsThatTurnOutToBeLostAreMadeAnewOnAThread) {
  const Broker::NewSession session = Open();
  const auto released = Acquire(session, Kind::kIpc);
  ASSERT_EQ(broker_->Release(CallOf(session), {released->items[0].lease.lease}), absl::OkStatus());
  EXPECT_EQ(broker_->views().GetTenant("a")->devices[0].retained, kGranule);
  device_->LoseUntold();
  const Broker::Call call = CallOf(session);
  auto acquisition = std::make_shared<Broker::Acquisition>();
  acquisition->session = session.id;
  acquisition->spec = {.bytes = 1, .kind = Kind::kIpc};
  acquisition->deliver = [](const Broker::Handover&, bool) { return absl::OkStatus(); };
  EXPECT_EQ(broker_->Advance(acquisition, /*may_block=*/false).state,
            Broker::Progress::State::kNeedsAThread);
  const auto made = broker_->Advance(acquisition, /*may_block=*/true).leases;
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_FALSE(made->front().reused);
  EXPECT_NE(made->front().segment, released->items[0].lease.segment);
  EXPECT_THAT(observer_.orphaned, IsEmpty());
}

// Counts what it is to keep.
class Keeper : public Continuity {
 public:
  absl::Status Begin(const JournalImage&) override { return absl::OkStatus(); }
  void Write(absl::Span<const journal::Change>) override {}
  absl::Status Keep(SegmentId, int) override {
    ++kept;
    return absl::OkStatus();
  }
  void LetGo(absl::Span<const SegmentId>) override {}
  void Keep(PublicationId, int) override {}
  void LetGo(PublicationId) override {}

  int kept = 0;
};

// A broker with two devices and without an observer.
class TwoContextsTest : public testing::Test {
 protected:
  TwoContextsTest() {
    BrokerOptions options;
    for (size_t i : {0, 1}) {
      auto device = std::make_unique<ContextDevice>(absl::StrCat("GPU-", i));
      devices_[i] = device.get();
      options.devices.push_back(std::move(device));
    }
    options.random = CountedSecrets();
    options.continuity = &keeper_;
    broker_ = std::make_unique<Broker>(std::move(options));
  }
  void TearDown() override { EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus()); }

  Keeper keeper_;
  ContextDevice* devices_[2] = {};
  std::unique_ptr<Broker> broker_;
};

TEST_F(TwoContextsTest, LossIsOfOneContextOfOneDevice) {
  const Broker::Call call = CallIn(*broker_, broker_->OpenSession("a", {}).value());
  const auto acquire = [&](const char* device) {
    return AcquireIn(*broker_, call, {.device_uuid = device, .bytes = 1, .kind = Kind::kIpc});
  };
  const std::vector<LeaseId> lost = acquire("GPU-0");
  devices_[0]->LoseUntold();
  acquire("GPU-0");
  acquire("GPU-1");
  devices_[0]->TellOfLoss();
  EXPECT_EQ(broker_->LostLeases(call), lost);
  EXPECT_EQ(keeper_.kept, 0) << "they have no descriptors";
}

TEST_F(TwoContextsTest, EachDevicesPoolIsSent) {
  devices_[1]->pool = 8;
  const Broker::Call call = CallIn(*broker_, broker_->OpenSession("a", {}).value());
  std::vector<uint64_t> sent;
  for (const char* device : {"GPU-0", "GPU-1", "GPU-0"}) {
    const auto leases =
        broker_->Acquire(call, {.device_uuid = device, .bytes = 1, .kind = Kind::kMempool},
                         absl::InfiniteFuture(), [&](const Broker::Handover& handover) {
                           for (const ExportedPool& pool : handover.pools) sent.push_back(pool.id);
                           return absl::OkStatus();
                         });
    ASSERT_TRUE(leases.ok()) << leases.status();
  }
  EXPECT_THAT(sent, ElementsAre(7, 8));
}

}  // namespace kinds_test
}  // namespace gpumemd
