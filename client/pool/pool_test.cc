// SPDX-License-Identifier: Apache-2.0
// A pool's events from the daemon, its waits there, and its choice of a device; against a scripted
// daemon.
#include "gpumem/pool.h"

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "common/bytes.h"
#include "common/node_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace pool_test {

using internal::FakeDaemon;

std::shared_ptr<Client> ConnectTo(const FakeDaemon& daemon) {
  auto client =
      Client::Connect({.runtime_dir = daemon.runtime_dir(), .timeout = absl::Seconds(20)});
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

std::unique_ptr<Pool> MakePool(const FakeDaemon& daemon, const PoolOptions& options) {
  auto pool = Pool::Create(ConnectTo(daemon), options);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

// Revokes all possible leases.
v1::Event Revoke(const std::vector<uint64_t>& leases) {
  v1::Event event;
  event.mutable_revocation()->mutable_lease_ids()->Add(leases.begin(), leases.end());
  event.mutable_revocation()->set_deadline_ms(60000);
  event.set_sent_ns(NodeClockNs());
  return event;
}

v1::Event Press(uint64_t bytes, uint64_t deadline_ms, absl::Duration age) {
  v1::Event event;
  event.mutable_pressure()->set_bytes(bytes);
  event.mutable_pressure()->set_deadline_ms(deadline_ms);
  event.set_sent_ns(NodeClockNs() - static_cast<uint64_t>(absl::ToInt64Nanoseconds(age)));
  return event;
}

bool Eventually(const std::function<bool()>& holds) {
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (!holds()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

// A daemon with `capacity` bytes that lets requests wait for them.
class SmallDaemon {
 public:
  explicit SmallDaemon(uint64_t capacity) : capacity_(capacity) {}

  void AwaitWaiters(int count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return waiters_ == count; };
    mutex_.Await(absl::Condition(&there));
  }
  void SetCapacity(uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    capacity_ = bytes;
  }
  FakeDaemon& fake() { return fake_; }

 private:
  grpc::Status Acquire(const std::function<bool()>& is_cancelled, uint64_t session,
                       const v1::AcquireRequest& request, v1::AcquireResponse* response) {
    const uint64_t bytes = request.bytes() * std::max(request.count(), 1u);
    const absl::Time end =
        absl::Now() + absl::Milliseconds(static_cast<int64_t>(request.wait_ms()));
    absl::MutexLock lock(&mutex_);
    ++waiters_;
    const auto fits = [&] { return granted_ + bytes <= capacity_; };
    // Cancellation gives no notification.
    while (!fits() && absl::Now() < end && !is_cancelled()) {
      mutex_.AwaitWithTimeout(absl::Condition(&fits), absl::Milliseconds(5));
    }
    --waiters_;
    if (!fits()) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "there is no more"};
    granted_ += bytes;
    return fake_.Grant(session, request, response);
  }

  absl::Mutex mutex_;
  uint64_t capacity_;
  uint64_t granted_ = 0;  // released memory is not granted again
  int waiters_ = 0;
  FakeDaemon fake_{
      {.acquire_waiting = [this](const auto& is_cancelled, uint64_t session,
                                 const v1::AcquireRequest& request, v1::AcquireResponse* response) {
        return Acquire(is_cancelled, session, request, response);
      }}};
};

TEST(PoolTest, WaitsInTheDaemonsQueue) {
  SmallDaemon daemon(8 * kMiB);
  auto pool = MakePool(daemon.fake(), {.wait = absl::Seconds(60)});
  const Block held = pool->Allocate(8 * kMiB, nullptr).value();
  std::thread waiter([&] {
    auto block = pool->Allocate(4 * kMiB, nullptr);
    ASSERT_TRUE(block.ok()) << block.status();
    memset(block->data, 1, block->bytes);
  });
  daemon.AwaitWaiters(1);
  daemon.SetCapacity(12 * kMiB);
  waiter.join();
  EXPECT_EQ(pool->Stats().used_bytes, 12 * kMiB);
  EXPECT_TRUE(pool->Free(held, nullptr).ok());
}

TEST(PoolTest, WhatIsFreedHereEndsTheWaitThere) {
  SmallDaemon daemon(8 * kMiB);
  auto pool = MakePool(daemon.fake(), {.wait = absl::Hours(1)});
  const Block held = pool->Allocate(8 * kMiB, nullptr).value();
  std::thread waiter([&] {
    auto block = pool->Allocate(8 * kMiB, nullptr);
    EXPECT_TRUE(block.ok()) << block.status();
  });
  daemon.AwaitWaiters(1);
  EXPECT_TRUE(pool->Free(held, nullptr).ok());
  waiter.join();
  daemon.AwaitWaiters(0);
  EXPECT_EQ(pool->Stats().reserved_bytes, 8 * kMiB);
}

TEST(PoolTest, WhatIsFreedHereEndsTheWaitForADaemonThatIsAway) {
  SmallDaemon daemon(8 * kMiB);
  auto pool = MakePool(daemon.fake(), {.wait = absl::Hours(1)});
  const Block held = pool->Allocate(8 * kMiB, nullptr).value();
  std::thread waiter([&] {
    auto block = pool->Allocate(8 * kMiB, nullptr);
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_TRUE(pool->Free(*block, nullptr).ok());
  });
  daemon.AwaitWaiters(1);
  daemon.fake().Crash();
  EXPECT_TRUE(pool->Free(held, nullptr).ok());
  waiter.join();
  EXPECT_EQ(pool->Stats().reserved_bytes, 8 * kMiB);
  // Nothing else waits for it either: the timeout of one call is 20 s, and there are 4 segments.
  const absl::Time start = absl::Now();
  EXPECT_TRUE(pool->Trim(0).ok());
  EXPECT_EQ(pool->Stats().reserved_bytes, 0u);
  pool.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(PoolTest, IgnoresPressureWhoseTimeHasPassed) {
  FakeDaemon daemon;
  auto pool = MakePool(daemon, {.grow_bytes = 2 * kMiB});
  ASSERT_TRUE(pool->Free(pool->Allocate(8 * kMiB, nullptr).value(), nullptr).ok());
  const uint64_t reserved = pool->Stats().reserved_bytes;
  daemon.AwaitWatches(1);
  daemon.Tell(Press(8 * kMiB, 1000, absl::Seconds(2)));
  daemon.Tell(Press(2 * kMiB, 60000, absl::Seconds(2)));
  EXPECT_TRUE(Eventually([&] { return pool->Stats().given_under_pressure_bytes > 0; }));
  EXPECT_EQ(pool->Stats().given_under_pressure_bytes, 2 * kMiB);
  EXPECT_EQ(pool->Stats().reserved_bytes, reserved - 2 * kMiB);
}

TEST(PoolTest, PressureOnOtherDevicesIsOfNoConcern) {
  FakeDaemon daemon;
  auto pool = MakePool(daemon, {.grow_bytes = 2 * kMiB});
  ASSERT_TRUE(pool->Free(pool->Allocate(8 * kMiB, nullptr).value(), nullptr).ok());
  daemon.AwaitWatches(1);
  v1::Event other = Press(8 * kMiB, 60000, absl::ZeroDuration());
  other.mutable_pressure()->set_device_uuid("HOST-9");
  daemon.Tell(other);
  v1::Event own = Press(2 * kMiB, /*deadline_ms=*/0, absl::ZeroDuration());
  own.mutable_pressure()->set_device_uuid(FakeDaemon::kDevice);
  daemon.Tell(own);
  EXPECT_TRUE(Eventually([&] { return pool->Stats().given_under_pressure_bytes > 0; }));
  EXPECT_EQ(pool->Stats().given_under_pressure_bytes, 2 * kMiB);
}

TEST(PoolTest, PressureFromTheNextDaemonIsHandledToo) {
  FakeDaemon daemon;
  auto pool = MakePool(daemon, {.grow_bytes = 2 * kMiB});
  ASSERT_TRUE(pool->Free(pool->Allocate(8 * kMiB, nullptr).value(), nullptr).ok());
  daemon.AwaitWatches(1);
  daemon.Crash();
  daemon.ComeBack();
  daemon.AwaitWatches(1);  // though the pool makes no call
  daemon.Tell(Press(2 * kMiB, 60000, absl::Seconds(2)));
  EXPECT_TRUE(Eventually([&] { return pool->Stats().given_under_pressure_bytes == 2 * kMiB; }));
}

TEST(PoolTest, RevocableMemoryThatIsTakenBackIsGivenWhenItIsFree) {
  FakeDaemon daemon;
  absl::Notification told, go_on;
  std::vector<uint64_t> leases;
  absl::Duration left;
  auto pool = MakePool(daemon, {.grow_bytes = 2 * kMiB,
                                .gives_under_pressure = false,
                                .revocable = true,
                                .on_revocation = [&](const Revocation& revocation) {
                                  leases = revocation.lease_ids;
                                  left = revocation.until_end;
                                  told.Notify();
                                  go_on.WaitForNotification();
                                }});
  const Block used = pool->Allocate(2 * kMiB, nullptr).value();
  ASSERT_TRUE(pool->Free(pool->Allocate(4 * kMiB, nullptr).value(), nullptr).ok());
  const size_t had = daemon.live_leases();
  ASSERT_GT(had, 1u);
  daemon.AwaitWatches(1);
  daemon.Tell(Revoke({1000}));  // of another pool
  daemon.Tell(Revoke({1, 2, 3, 4}));
  ASSERT_TRUE(told.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_THAT(leases, ::testing::ElementsAre(1, 2, 3, 4));
  EXPECT_GT(left, absl::Seconds(20));
  EXPECT_LE(left, absl::Seconds(60));
  // The free part has gone by now; the rest goes when it is freed.
  EXPECT_EQ(daemon.live_leases(/*awaited=*/1), 1u);
  EXPECT_TRUE(pool->Free(used, nullptr).ok());
  go_on.Notify();
  EXPECT_TRUE(Eventually([&] { return daemon.live_leases() == 0; }));
  EXPECT_EQ(pool->Stats().reserved_bytes, 0u);
}

TEST(PoolTest, WithoutAHookWhatIsFreeIsGivenAlone) {
  FakeDaemon daemon;
  auto pool = MakePool(daemon, {.grow_bytes = 2 * kMiB, .revocable = true});
  const Block used = pool->Allocate(2 * kMiB, nullptr).value();
  ASSERT_TRUE(pool->Free(pool->Allocate(4 * kMiB, nullptr).value(), nullptr).ok());
  ASSERT_GT(daemon.live_leases(), 1u);
  daemon.AwaitWatches(1);
  daemon.Tell(Revoke({1, 2, 3, 4}));
  EXPECT_EQ(daemon.live_leases(/*awaited=*/1), 1u);
  EXPECT_TRUE(pool->Free(used, nullptr).ok());
}

TEST(PoolTest, AHookIsNotCalledWhereAllOfItWasFree) {
  FakeDaemon daemon;
  std::atomic<int> calls = 0;
  auto pool =
      MakePool(daemon, {.revocable = true, .on_revocation = [&](const Revocation&) { ++calls; }});
  ASSERT_TRUE(pool->Free(pool->Allocate(4 * kMiB, nullptr).value(), nullptr).ok());
  daemon.AwaitWatches(1);
  daemon.Tell(Revoke({1, 2, 3}));
  EXPECT_TRUE(Eventually([&] { return daemon.live_leases() == 0; }));
  pool.reset();  // blocks until a call in progress has returned
  EXPECT_EQ(calls, 0);
}

TEST(PoolTest, LeasesAreRevocableOnlyInARevocablePool) {
  FakeDaemon* fake = nullptr;
  std::atomic<int> revocable = 0, other = 0;
  FakeDaemon daemon({.acquire = [&](uint64_t session, const v1::AcquireRequest& request,
                                    v1::AcquireResponse* response) {
    ++(request.revocable() ? revocable : other);
    return fake->Grant(session, request, response);
  }});
  fake = &daemon;
  auto borrows = MakePool(daemon, {.revocable = true});
  EXPECT_TRUE(borrows->Allocate(kMiB, nullptr).ok());
  EXPECT_EQ(revocable, 1);
  auto owns = MakePool(daemon, {});
  EXPECT_TRUE(owns->Allocate(kMiB, nullptr).ok());
  EXPECT_EQ(revocable, 1);
  EXPECT_EQ(other, 1);
  // A revocable pool listens whether or not it gives under pressure, from its first segment on.
  borrows->SetGivesUnderPressure(false);
  owns->SetGivesUnderPressure(false);
  daemon.AwaitWatches(1);
}

// Before anything is leased, and also in a process that sees no GPU.
TEST(PoolTest, MapsForGpusAlone) {
  FakeDaemon daemon;
  const std::shared_ptr<Client> shared = ConnectTo(daemon);
  EXPECT_EQ(Pool::Create(shared, {.map_devices = {FakeDaemon::kDevice}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Pool::Create(shared, {.map_devices = {"GPU-1"}}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(PoolTest, GrowsByOneTebibyteAtMost) {
  FakeDaemon daemon;
  const std::shared_ptr<Client> shared = ConnectTo(daemon);
  for (uint64_t bytes : {(uint64_t{1} << 40) + 1, UINT64_MAX - 255, UINT64_MAX}) {
    EXPECT_EQ(Pool::Create(shared, {.grow_bytes = bytes}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(Pool::Create(shared, {.grow_bytes = uint64_t{1} << 40}).ok());
}

TEST(PoolTest, OfKindMempoolIsNotRevocable) {
  FakeDaemon daemon;
  const PoolOptions options = {.kind = Kind::kMempool, .revocable = true};
  EXPECT_EQ(Pool::Create(ConnectTo(daemon), options).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Usage of two devices with 64 MiB each. The first looks emptier by its limit and charges.
class MostFreePoolTest : public testing::Test {
 protected:
  MostFreePoolTest() {
    for (const char* const uuid : {"HOST-0", "HOST-1"}) {
      v1::Device& device = devices_.emplace_back();
      device.set_device_uuid(uuid);
      device.set_backend(v1::BACKEND_HOST);
      device.set_capacity_bytes(64 * kMiB);
      device.set_granularity_bytes(FakeDaemon::kGranularity);
      device.add_kinds(v1::KIND_VMM);
      v1::DeviceUsage& usage = usages_.emplace_back();
      usage.set_device_uuid(uuid);
      usage.set_limit_bytes(64 * kMiB);
    }
    devices_[1].set_charged_bytes(8 * kMiB);
    usages_[1].set_charged_bytes(8 * kMiB);
  }
  // Sets what the daemon says that the tenant can get on each device.
  void Report(uint64_t first, uint64_t second) {
    usages_[0].set_obtainable_bytes(first);
    usages_[1].set_obtainable_bytes(second);
  }

  std::vector<v1::Device> devices_;
  std::vector<v1::DeviceUsage> usages_;
};

TEST_F(MostFreePoolTest, ChoosesTheDeviceByItsObtainableBytes) {
  Report(16 * kMiB, 24 * kMiB);
  FakeDaemon daemon({.devices = devices_, .device_usages = usages_});
  auto pool = MakePool(daemon, {.device = "most-free"});
  EXPECT_EQ(pool->device_uuid(), "HOST-1");
  EXPECT_EQ(pool->MemGetInfo()->free_bytes, 24 * kMiB);
  EXPECT_EQ(pool->MemGetInfo()->total_bytes, 64 * kMiB);
}

TEST_F(MostFreePoolTest, PinnedMemoryIsNotChosenForTheDefaultKind) {
  Report(16 * kMiB, 24 * kMiB);
  v1::Device& pinned = devices_.emplace_back();
  pinned.set_device_uuid("PINNED-0");
  pinned.set_backend(v1::BACKEND_HOST);
  pinned.set_capacity_bytes(64 * kMiB);
  pinned.set_granularity_bytes(FakeDaemon::kGranularity);
  pinned.add_kinds(v1::KIND_PINNED);
  v1::DeviceUsage& usage = usages_.emplace_back();
  usage.set_device_uuid("PINNED-0");
  usage.set_limit_bytes(64 * kMiB);
  usage.set_obtainable_bytes(64 * kMiB);
  FakeDaemon daemon({.devices = devices_, .device_usages = usages_});
  EXPECT_EQ(MakePool(daemon, {.device = "most-free"})->device_uuid(), "HOST-1");
  EXPECT_EQ(MakePool(daemon, {.device = "most-free", .kind = Kind::kPinned})->device_uuid(),
            "PINNED-0");
}

// As those of a newer daemon.
TEST_F(MostFreePoolTest, ADeviceOfUnknownKindsMakesNoPool) {
  devices_[0].set_kinds(0, static_cast<v1::Kind>(99));
  FakeDaemon daemon({.devices = devices_, .device_usages = usages_});
  for (const PoolOptions& options : {PoolOptions(), PoolOptions{.device = "HOST-0"}}) {
    EXPECT_EQ(Pool::Create(ConnectTo(daemon), options).status().code(),
              absl::StatusCode::kUnimplemented);
  }
  EXPECT_EQ(MakePool(daemon, {.device = "HOST-1"})->kind(), Kind::kVmm);
}

TEST_F(MostFreePoolTest, ADeviceWithoutObtainableBytesIsNotChosen) {
  Report(0, 1 * kMiB);
  FakeDaemon daemon({.devices = devices_, .device_usages = usages_});
  EXPECT_EQ(MakePool(daemon, {.device = "most-free"})->device_uuid(), "HOST-1");
  EXPECT_EQ(MakePool(daemon, {.device = "HOST-0"})->MemGetInfo()->free_bytes, 0u);
}

TEST_F(MostFreePoolTest, EstimatesFromTheUsageOfAnOlderDaemon) {
  FakeDaemon daemon({.devices = devices_, .device_usages = usages_});
  auto pool = MakePool(daemon, {.device = "most-free"});
  EXPECT_EQ(pool->device_uuid(), "HOST-0");
  EXPECT_EQ(pool->MemGetInfo()->free_bytes, 64 * kMiB);
  EXPECT_EQ(MakePool(daemon, {.device = "HOST-1"})->MemGetInfo()->free_bytes, 56 * kMiB);
}

TEST_F(MostFreePoolTest, GuaranteesOfOthersDoNotBindARevocablePool) {
  Report(16 * kMiB, 24 * kMiB);
  FakeDaemon daemon({.devices = devices_, .device_usages = usages_});
  auto pool = MakePool(daemon, {.device = "HOST-1", .revocable = true});
  EXPECT_EQ(pool->MemGetInfo()->free_bytes, 56 * kMiB);
}

}  // namespace pool_test
}  // namespace gpumem
