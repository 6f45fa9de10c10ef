// SPDX-License-Identifier: Apache-2.0
// What operators ask of the broker beside tenants and suspensions: memory pools, trims, lists.
#include "daemon/core/broker/operators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/core/broker/views.h"
#include "daemon/device/testing/fault_injection.h"

namespace gpumemd {
namespace operators_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

using absl::StatusCode;

constexpr uint64_t kGranule = 2 << 20;

// A device without memory, with the pools that a test sets.
class PoolDevice : public Device {
 public:
  explicit PoolDevice(std::string uuid)
      : info_{.uuid = std::move(uuid),
              .capacity_bytes = 16 * kGranule,
              .granularity_bytes = kGranule,
              .kinds = {Kind::kVmm}} {}

  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec&) override {
    return std::make_unique<Memory>();
  }
  absl::StatusOr<uint64_t> DriverFreeBytes() const override {
    ++asked;
    if (gate != nullptr) gate->Pass();
    if (!status.ok()) return status;
    return 3 * kGranule;
  }
  absl::StatusOr<std::vector<PoolStatus>> Pools() override {
    if (!status.ok()) return status;
    return pools;
  }
  absl::StatusOr<PoolStatus> SetPool(absl::string_view tenant, const PoolChange& change) override {
    if (!change_status.ok()) return change_status;
    for (PoolStatus& pool : pools) {
      if (pool.tenant != tenant) continue;
      pool.release_threshold_bytes = change.release_threshold_bytes.value_or(0);
      return pool;
    }
    return absl::NotFoundError("no pool");
  }
  absl::StatusOr<PoolStatus> TrimPool(absl::string_view tenant, uint64_t keep_bytes) override {
    if (!change_status.ok()) return change_status;
    for (PoolStatus& pool : pools) {
      if (pool.tenant != tenant) continue;
      pool.reserved_bytes = keep_bytes;
      return pool;
    }
    return absl::NotFoundError("no pool");
  }

  std::vector<PoolStatus> pools;
  absl::Status status, change_status;
  Gate* gate = nullptr;  // for questions about free memory
  mutable int asked = 0;

 private:
  class Memory : public Allocation {};
  const DeviceInfo info_;
};

class Observer : public QuietObserver {
 public:
  void QuotaChanged(absl::string_view tenant) override { quotas.emplace_back(tenant); }
  void DrainingChanged(bool draining) override { drained.push_back(draining); }
  std::vector<std::string> quotas;
  std::vector<bool> drained;
};

class BrokerOperatorsTest : public testing::Test {
 protected:
  BrokerOperatorsTest() { Start(&observer_); }

  void Start(BrokerObserver* observer) {
    BrokerOptions options;
    for (int i : {0, 1}) {
      auto device = std::make_unique<PoolDevice>("GPU-" + std::to_string(i));
      devices_[i] = device.get();
      options.devices.push_back(std::move(device));
    }
    options.random = CountedSecrets();
    options.observer = observer;
    options.now = [this] { return absl::FromUnixSeconds(seconds_); };
    broker_ = std::make_unique<Broker>(std::move(options));
    operators_.emplace(broker_.get());
  }
  void TearDown() override { EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus()); }

  Broker::Call Begin(absl::string_view tenant) {
    const auto session = broker_->OpenSession(tenant, {.peer = {.pid = ++pid_}});
    EXPECT_TRUE(session.ok()) << session.status();
    return CallIn(*broker_, *session);
  }
  std::vector<LeaseId> Acquire(const Broker::Call& call, uint32_t count) {
    return AcquireIn(*broker_, call, {.bytes = kGranule, .count = count});
  }

  Observer observer_;
  std::atomic<int64_t> seconds_ = 1'700'000'000;
  pid_t pid_ = 0;
  PoolDevice* devices_[2] = {};
  std::unique_ptr<Broker> broker_;
  std::optional<BrokerOperators> operators_;
};

TEST_F(BrokerOperatorsTest, PoolsAreListedByTenantAndDevice) {
  devices_[0]->pools = {{.tenant = "a"}, {.tenant = "b"}};
  devices_[1]->pools = {{.tenant = "b"}};
  const auto count = [&](absl::string_view tenant, absl::string_view device) {
    return operators_->ListPools(tenant, device).value().size();
  };
  EXPECT_EQ(count("", ""), 3u);
  EXPECT_EQ(count("b", ""), 2u);
  EXPECT_EQ(count("", "GPU-0"), 2u);
  EXPECT_EQ(count("a", "GPU-1"), 0u);
  EXPECT_EQ(operators_->ListPools("", "GPU-9").status().code(), StatusCode::kNotFound);
  devices_[1]->status = absl::UnavailableError("its context was lost");
  EXPECT_EQ(operators_->ListPools("", "").status(), devices_[1]->status);
  EXPECT_EQ(count("a", "GPU-0"), 1u) << "the other device is not asked";
}

TEST_F(BrokerOperatorsTest, PoolIsChangedOnTheFirstDeviceThatHasIt) {
  devices_[0]->pools = {{.tenant = "a"}};
  devices_[1]->pools = {{.tenant = "a"}, {.tenant = "b"}};
  EXPECT_EQ(operators_->SetPool("a", "", {.release_threshold_bytes = 5})->device_uuid, "GPU-0");
  EXPECT_EQ(devices_[0]->pools[0].release_threshold_bytes, 5u);
  EXPECT_EQ(operators_->SetPool("a", "GPU-1", {.release_threshold_bytes = 6})->device_uuid,
            "GPU-1");
  EXPECT_EQ(operators_->SetPool("b", "", {})->device_uuid, "GPU-1");
  const auto trimmed = operators_->TrimPool("b", "", 7);
  ASSERT_TRUE(trimmed.ok()) << trimmed.status();
  EXPECT_EQ(trimmed->device_uuid, "GPU-1");
  EXPECT_EQ(trimmed->status.reserved_bytes, 7u);
}

TEST_F(BrokerOperatorsTest, PoolThatIsNotThereIsNotChanged) {
  devices_[0]->pools = {{.tenant = "a"}};
  for (const char* device : {"", "GPU-0", "GPU-9"}) {
    EXPECT_EQ(operators_->SetPool("b", device, {}).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(operators_->TrimPool("b", device, 0).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(operators_->TrimPool("", device, 0).status().code(), StatusCode::kNotFound);
  }
  devices_[0]->change_status = absl::InternalError("CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(operators_->SetPool("a", "", {}).status(), devices_[0]->change_status);
  EXPECT_EQ(operators_->TrimPool("a", "", 0).status(), devices_[0]->change_status);
}

TEST_F(BrokerOperatorsTest, TrimReturnsWhenTheDriverHasTheMemory) {
  const Broker::Call call = Begin("a");
  ASSERT_EQ(broker_->Release(call, Acquire(call, 3)), absl::OkStatus());
  EXPECT_EQ(broker_->views().Devices(false)[0].charged, 3 * kGranule) << "it is retained";
  const auto trimmed = operators_->Trim("a", "", kGranule);
  ASSERT_TRUE(trimmed.ok()) << trimmed.status();
  EXPECT_EQ(trimmed->segments, 2u);
  EXPECT_EQ(trimmed->bytes, 2 * kGranule);
  EXPECT_EQ(broker_->views().Devices(false)[0].charged, kGranule);
  EXPECT_EQ(operators_->Trim("unknown", "", 0).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(operators_->Trim("", "GPU-9", 0).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(operators_->Trim("a", "GPU-1", 0)->segments, 0u);
}

TEST_F(BrokerOperatorsTest, ChangesAreMadeWithAndWithoutAnObserver) {
  for (const bool observed : {true, false}) {
    if (!observed) Start(nullptr);
    operators_->Configure({{"a", {}}}, {});
    ASSERT_TRUE(operators_->OverrideQuota("a", {{.limit_bytes = kGranule}}).ok());
    EXPECT_EQ(broker_->views().GetTenant("a")->quota.limit_bytes, kGranule);
    ASSERT_TRUE(operators_->UnsetQuota("a", {}).ok());
    EXPECT_EQ(broker_->views().GetTenant("a")->quota, Quota());
    EXPECT_EQ(operators_->CheckQuota("a", {}, {.device_limits = {{"GPU-9", 1}}}).code(),
              StatusCode::kNotFound);
    EXPECT_EQ(operators_->CheckQuota("a", {}, {.device_limits = {{"GPU-1", 1}}}), absl::OkStatus());
    operators_->SetDraining(true);
    EXPECT_TRUE(broker_->views().Count().draining);
    operators_->SetDraining(false);
    operators_->Close();
    EXPECT_TRUE(broker_->views().Count().draining);
    EXPECT_EQ(broker_->OpenSession("a", {}).status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(observer_.quotas, ElementsAre("", "a", "a"));
    EXPECT_THAT(observer_.drained, ElementsAre(true, false, true));
  }
}

TEST_F(BrokerOperatorsTest, ClosingADrainedDaemonIsNoNewDrain) {
  operators_->SetDraining(true);
  operators_->Close();
  EXPECT_THAT(observer_.drained, ElementsAre(true));
}

TEST_F(BrokerOperatorsTest, ListsAreOfATenantOrADevice) {
  const Broker::Call a = Begin("a"), b = Begin("b");
  Acquire(a, 2);
  const std::vector<LeaseId> leases = Acquire(b, 1);
  const BrokerViews views = broker_->views();
  EXPECT_THAT(*views.ListSessions(""), SizeIs(2));
  EXPECT_THAT(*views.ListSessions("a"), SizeIs(1));
  EXPECT_THAT(*views.ListSegments("", ""), SizeIs(3));
  EXPECT_THAT(*views.ListSegments("b", "GPU-0"), SizeIs(1));
  EXPECT_THAT(*views.ListSegments("", "GPU-1"), IsEmpty());
  EXPECT_EQ(views.ListSessions("unknown").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(views.ListSegments("unknown", "").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(views.ListSegments("", "GPU-9").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(views.ListPublications("unknown").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(views.ListTenants(), SizeIs(2));
  EXPECT_THAT(views.ListHolders(std::nullopt).leases, SizeIs(3));
  const SegmentId of_b = views.ListSegments("b", "")->front().id;
  const HoldersView holders = views.ListHolders(of_b);
  ASSERT_THAT(holders.leases, SizeIs(1));
  EXPECT_EQ(holders.leases[0].id, leases[0]);
  EXPECT_EQ(holders.leases[0].session, b.session());
}

TEST_F(BrokerOperatorsTest, PublicationIsShownWithItsMetadata) {
  const Broker::Call call = Begin("a");
  ASSERT_TRUE(broker_->Publish(call, {.name = "w", .leases = Acquire(call, 2)}, "meta").ok());
  const BrokerViews views = broker_->views();
  const auto shown = views.GetPublication("a/w");
  ASSERT_TRUE(shown.ok()) << shown.status();
  EXPECT_EQ(shown->metadata, "meta");
  EXPECT_EQ(shown->view.version, 1u);
  EXPECT_THAT(shown->segment_bytes, ElementsAre(kGranule, kGranule));
  EXPECT_EQ(views.GetPublication("a/x").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(views.GetPublication("w").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(operators_->Unpublish("a/x").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(operators_->Unpublish("a/w").value(), 1u);
}

// Any session may list devices, and a driver may be slow.
TEST_F(BrokerOperatorsTest, DriversAreAskedAtMostTenTimesASecond) {
  const BrokerViews views = broker_->views();
  EXPECT_EQ(views.Devices(false)[0].driver_free, 0u);
  EXPECT_EQ(devices_[0]->asked, 0);
  EXPECT_EQ(views.Devices(true)[1].driver_free, 3 * kGranule);
  EXPECT_EQ(views.Devices(true)[1].driver_free, 3 * kGranule);
  EXPECT_EQ(devices_[1]->asked, 1);
  ++seconds_;
  devices_[1]->status = absl::UnavailableError("no NVML");
  EXPECT_EQ(views.Devices(true)[0].driver_free, 3 * kGranule);
  EXPECT_EQ(views.Devices(true)[1].driver_free, 0u);
  EXPECT_EQ(devices_[1]->asked, 2);
}

TEST_F(BrokerOperatorsTest, ASlowDriverHoldsUpOneCallerAlone) {
  Gate gate;
  devices_[0]->gate = &gate;
  uint64_t told = 0;
  std::thread asks([&] { told = broker_->views().Devices(true)[0].driver_free; });
  gate.AwaitArrivals(1);
  EXPECT_EQ(broker_->views().Devices(true)[0].driver_free, 0u) << "there is no answer yet";
  gate.Open();
  asks.join();
  EXPECT_EQ(told, 3 * kGranule);
  EXPECT_EQ(devices_[0]->asked, 1);
}

TEST_F(BrokerOperatorsTest, OverheadOfADriverIsChargedToItsSession) {
  const Broker::Call call = Begin("a");
  const auto set = [&](uint64_t granules) {
    operators_->SetOverhead(
        {.session = call.session(), .device_uuid = "GPU-1", .bytes = granules * kGranule});
    return broker_->views().ListSessions("a")->front().overhead_bytes;
  };
  EXPECT_THAT(set(3), ElementsAre(Pair("GPU-1", 3 * kGranule)));
  EXPECT_EQ(broker_->views().Devices(false)[1].charged, 3 * kGranule);
  EXPECT_THAT(set(5), ElementsAre(Pair("GPU-1", 5 * kGranule)));
  EXPECT_THAT(set(0), IsEmpty());
}

}  // namespace operators_test
}  // namespace gpumemd
