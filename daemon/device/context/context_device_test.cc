// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/context_device.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/mapping/host_ipc.h"
#include "common/mapping/mapping.h"
#include "daemon/device/devices.h"

namespace gpumemd {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

using gpumem::kMiB;
constexpr absl::Duration kTimeout = absl::Seconds(60);

class ContextDeviceTest : public testing::Test {
 protected:
  ContextDeviceTest() {
    dir_ = "/tmp/gpumem-ctx.XXXXXX";
    EXPECT_NE(mkdtemp(dir_.data()), nullptr);
    absl::StatusOr<std::unique_ptr<Device>> device =
        OpenHostDevice({.capacity_bytes = 64 * kMiB}, dir_);
    EXPECT_TRUE(device.ok()) << device.status();
    if (device.ok()) device_ = *std::move(device);
  }
  ~ContextDeviceTest() override {
    device_.reset();
    EXPECT_EQ(rmdir(dir_.c_str()), 0) << "something is left in the folder";
  }

  std::unique_ptr<Allocation> Create(const CreateSpec& spec) {
    absl::StatusOr<std::unique_ptr<Allocation>> made = device_->Create(spec);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
  std::unique_ptr<Allocation> Ipc() { return Create({.kind = Kind::kIpc, .bytes = 2 * kMiB}); }
  std::unique_ptr<Allocation> Pooled(const std::string& tenant, uint64_t bytes = 2 * kMiB,
                                     uint64_t limit = 32 * kMiB) {
    return Create({.kind = Kind::kMempool, .bytes = bytes, .tenant = tenant, .limit_bytes = limit});
  }

  // The descriptors of pools that this process has open.
  static int OpenPools() {
    int pools = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // the iterator's own descriptor may be
      const std::string what = std::filesystem::read_symlink(entry.path(), gone).string();
      pools += what.find("gpumem-pool") != std::string::npos;
    }
    return pools;
  }

  std::string dir_;
  std::unique_ptr<Device> device_;
};

TEST_F(ContextDeviceTest, MakesAllKindsOfTheHost) {
  EXPECT_THAT(device_->info().kinds,
              ElementsAre(Kind::kVmm, Kind::kMempool, Kind::kIpc, Kind::kDriver));
  EXPECT_GE(Create({.kind = Kind::kVmm, .bytes = 2 * kMiB})->fd(), 0);
  EXPECT_EQ(device_->context_pid(), 0) << "kind vmm needs no context";
  const auto charged = Create({.kind = Kind::kDriver, .bytes = 64 * kMiB});
  EXPECT_EQ(charged->fd(), -1);
  EXPECT_EQ(*device_->DriverFreeBytes(), 64 * kMiB) << "kind driver takes nothing of the device";
  EXPECT_EQ(device_->Create({.kind = Kind::kPinned, .bytes = 2 * kMiB}).status().code(),
            StatusCode::kUnimplemented);
}

TEST_F(ContextDeviceTest, WithoutAFolderThereAreNoKindsOfAContext) {
  const auto device = OpenHostDevice({.capacity_bytes = 64 * kMiB}, "");
  ASSERT_TRUE(device.ok());
  EXPECT_THAT((*device)->info().kinds, ElementsAre(Kind::kVmm, Kind::kDriver));
}

TEST_F(ContextDeviceTest, TheContextLivesAsLongAsItsMemory) {
  auto first = Ipc();
  const pid_t context = device_->context_pid();
  ASSERT_GT(context, 0);
  EXPECT_EQ(kill(context, 0), 0);
  auto second = Pooled("a");
  EXPECT_EQ(device_->context_pid(), context);
  first.reset();
  EXPECT_EQ(device_->context_pid(), context);
  second.reset();
  EXPECT_EQ(device_->context_pid(), 0);
  EXPECT_EQ(kill(context, 0), -1) << "it is reaped";
  EXPECT_EQ(errno, ESRCH);
}

TEST_F(ContextDeviceTest, ARefusedCreateLeavesNoContext) {
  EXPECT_EQ(
      device_
          ->Create(
              {.kind = Kind::kMempool, .bytes = 8 * kMiB, .tenant = "a", .limit_bytes = 4 * kMiB})
          .status()
          .code(),
      StatusCode::kResourceExhausted);
  EXPECT_EQ(device_->context_pid(), 0);
  EXPECT_THAT(*device_->Pools(), IsEmpty());
  EXPECT_EQ(*device_->DriverFreeBytes(), 64 * kMiB);
}

TEST_F(ContextDeviceTest, AllKindsShareTheDevicesBytes) {
  auto vmm = Create({.kind = Kind::kVmm, .bytes = 30 * kMiB});
  auto pooled = Pooled("a", 30 * kMiB);
  EXPECT_EQ(*device_->DriverFreeBytes(), 4 * kMiB);
  EXPECT_EQ(device_->Create({.kind = Kind::kIpc, .bytes = 6 * kMiB}).status().code(),
            StatusCode::kResourceExhausted);
  pooled.reset();
  EXPECT_NE(Create({.kind = Kind::kIpc, .bytes = 6 * kMiB}), nullptr);
  EXPECT_EQ(*device_->DriverFreeBytes(), 34 * kMiB);
}

TEST_F(ContextDeviceTest, ATenantHasOnePoolUntilItsLimitGrows) {
  const auto first = Pooled("a");
  const auto second = Pooled("a");
  const auto other = Pooled("b");
  EXPECT_EQ(first->pool()->id, second->pool()->id);
  EXPECT_EQ(first->pool()->fd, second->pool()->fd);
  EXPECT_NE(first->pool()->id, other->pool()->id);
  auto larger = Pooled("a", 2 * kMiB, 48 * kMiB);
  EXPECT_NE(larger->pool()->id, first->pool()->id);
  std::vector<PoolStatus> pools = *device_->Pools();
  ASSERT_THAT(pools, SizeIs(3));
  EXPECT_EQ(pools[0].tenant, "a");
  EXPECT_EQ(pools[0].segments, 2u);
  EXPECT_EQ(pools[0].max_bytes, 32 * kMiB);
  EXPECT_EQ(pools[0].used_bytes, 4 * kMiB);
  EXPECT_EQ(pools[2].max_bytes, 48 * kMiB);
  larger.reset();
  EXPECT_THAT(*device_->Pools(), SizeIs(2));
}

// Memory freed in a pool that stays does not return to the device (daemon/core/ledger/pools.cc).
TEST_F(ContextDeviceTest, NothingNewComesFromAPoolThatIsOnItsWayOut) {
  auto first = Pooled("a");
  auto second = Pooled("a");
  const uint64_t old = first->pool()->id;
  first.reset();
  const auto third = Pooled("a"), fourth = Pooled("a");
  EXPECT_NE(third->pool()->id, old);
  EXPECT_EQ(fourth->pool()->id, third->pool()->id);
  EXPECT_THAT(*device_->Pools(), SizeIs(2));
  second.reset();
  EXPECT_THAT(*device_->Pools(), SizeIs(1));
}

TEST_F(ContextDeviceTest, PoolSettingsHoldForTheTenantsLaterPools) {
  EXPECT_EQ(device_->SetPool("a", {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(device_->TrimPool("a", 0).status().code(), StatusCode::kNotFound);
  auto memory = Pooled("a");
  const auto set = device_->SetPool(
      "a", {.release_threshold_bytes = 4 * kMiB, .reuse_allow_opportunistic = false});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->release_threshold_bytes, 4 * kMiB);
  EXPECT_FALSE(set->reuse_allow_opportunistic);
  EXPECT_TRUE(set->reuse_follow_event_dependencies);
  auto spare = Pooled("a");
  spare.reset();
  EXPECT_EQ(device_->Pools()->front().reserved_bytes, 4 * kMiB);
  const auto trimmed = device_->TrimPool("a", 0);
  ASSERT_TRUE(trimmed.ok()) << trimmed.status();
  EXPECT_EQ(trimmed->reserved_bytes, 2 * kMiB);
  memory.reset();
  EXPECT_THAT(*device_->Pools(), IsEmpty());
  memory = Pooled("a");
  EXPECT_EQ(device_->Pools()->front().release_threshold_bytes, 4 * kMiB);
  const auto other = Pooled("b");
  EXPECT_EQ(device_->Pools()->back().release_threshold_bytes, 0u);
}

TEST_F(ContextDeviceTest, AKilledContextIsReportedOnceAndReplaced) {
  std::atomic<int> reports{0};
  absl::Notification reported;
  auto ipc = Ipc();
  auto pooled = Pooled("a");
  auto vmm = Create({.kind = Kind::kVmm, .bytes = 2 * kMiB});
  bool lost_by_then = false;
  device_->OnContextLost([&] {
    lost_by_then = ipc->lost() && pooled->lost();
    if (++reports == 1) reported.Notify();
  });
  EXPECT_FALSE(ipc->lost());
  const pid_t context = device_->context_pid();
  ASSERT_EQ(kill(context, SIGKILL), 0);
  ASSERT_TRUE(reported.WaitForNotificationWithTimeout(kTimeout));
  EXPECT_TRUE(lost_by_then);
  EXPECT_FALSE(vmm->lost());
  EXPECT_EQ(device_->context_pid(), 0);
  EXPECT_THAT(*device_->Pools(), IsEmpty());
  EXPECT_EQ(device_->SetPool("a", {}).status().code(), StatusCode::kNotFound);

  auto next = Pooled("a");
  EXPECT_NE(device_->context_pid(), context);
  EXPECT_NE(next->pool()->id, pooled->pool()->id);
  ipc.reset();
  pooled.reset();
  EXPECT_FALSE(next->lost());
  EXPECT_THAT(*device_->Pools(), SizeIs(1)) << "the lost ones' end does not touch the new context";
  EXPECT_EQ(*device_->DriverFreeBytes(), 60 * kMiB);
  next.reset();
  EXPECT_EQ(device_->context_pid(), 0);
  EXPECT_EQ(reports, 1);
}

TEST_F(ContextDeviceTest, ADyingContextFailsCallsWithUnavailableAndTheNextOneWorks) {
  auto first = Ipc();
  // Stopped first, so that no call can be answered before the kill.
  kill(device_->context_pid(), SIGSTOP);
  const pid_t context = device_->context_pid();
  std::thread killer([context] { kill(context, SIGKILL); });
  const absl::Status status = device_->Create({.kind = Kind::kIpc, .bytes = 2 * kMiB}).status();
  killer.join();
  // Either it was asked and died, or was known to be dead, and replaced, by then.
  EXPECT_THAT(status.code(), testing::AnyOf(StatusCode::kUnavailable, StatusCode::kOk));
  EXPECT_NE(Ipc(), nullptr);
  EXPECT_TRUE(first->lost());
}

TEST_F(ContextDeviceTest, AHungContextIsKilledAndReported) {
  absl::Notification reported;
  const auto first = Ipc();
  device_->OnContextLost([&] { reported.Notify(); });
  ASSERT_EQ(kill(device_->context_pid(), SIGSTOP), 0);
  EXPECT_EQ(device_->Create({.kind = Kind::kIpc, .bytes = 2 * kMiB}).status().code(),
            StatusCode::kUnavailable);
  EXPECT_NE(Ipc(), nullptr);
  EXPECT_TRUE(reported.WaitForNotificationWithTimeout(kTimeout));
  EXPECT_TRUE(first->lost());
  device_->OnContextLost(nullptr);
}

// While one of ours is open, the driver keeps the memory of a dead pool.
TEST_F(ContextDeviceTest, ALostPoolsDescriptorIsClosedWithItsLastUser) {
  const auto pooled = Pooled("a");
  const auto other = Pooled("b");
  std::optional<ExportedPool> used = pooled->pool();
  ASSERT_TRUE(used.has_value());
  EXPECT_EQ(OpenPools(), 2);
  device_->EndContext();
  EXPECT_FALSE(pooled->pool().has_value());
  EXPECT_FALSE(other->pool().has_value());
  EXPECT_EQ(OpenPools(), 1);
  used.reset();
  EXPECT_EQ(OpenPools(), 0);
}

TEST_F(ContextDeviceTest, ADeviceWithoutAContextLeavesTheSocketOfAnother) {
  const auto memory = Ipc();
  { const auto other = OpenHostDevice({.capacity_bytes = 64 * kMiB}, dir_); }
  EXPECT_TRUE(gpumem::OpenHostIpc(dir_, *memory->export_data(), 2 * kMiB, {}).ok());
}

TEST_F(ContextDeviceTest, AKilledContextsSocketIsRemovedAtTheEnd) {
  auto memory = Ipc();
  ASSERT_EQ(kill(device_->context_pid(), SIGKILL), 0);
  while (!memory->lost()) std::this_thread::yield();
  EXPECT_TRUE(std::filesystem::exists(gpumem::HostIpcSocket(dir_, 0)));
  memory.reset();
  device_.reset();
  EXPECT_FALSE(std::filesystem::exists(gpumem::HostIpcSocket(dir_, 0)));
}

TEST_F(ContextDeviceTest, RefusesWhereNoThreadCanBeStarted) {
  pthread_attr_t usual, huge;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 48), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const absl::Status status = device_->Create({.kind = Kind::kIpc, .bytes = 2 * kMiB}).status();
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(device_->context_pid(), 0);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
  EXPECT_NE(Ipc(), nullptr);
}

TEST_F(ContextDeviceTest, TheContextGetsNothingThatIsNotItsOwn) {
  const auto memory = Ipc();
  // Standard streams, its socket, what it serves with; none of ours, such as this one.
  int ours[2];
  ASSERT_EQ(pipe(ours), 0);  // not close-on-exec
  const auto device = OpenHostDevice({.index = 1, .capacity_bytes = 64 * kMiB}, dir_);
  ASSERT_TRUE(device.ok());
  const auto other = (*device)->Create({.kind = Kind::kIpc, .bytes = 2 * kMiB});
  ASSERT_TRUE(other.ok()) << other.status();
  const std::string fds = absl::StrCat("/proc/", (*device)->context_pid(), "/fd");
  for (const auto& entry : std::filesystem::directory_iterator(fds)) {
    const int number = std::stoi(entry.path().filename().string());
    if (number <= 2) continue;
    EXPECT_EQ(std::filesystem::read_symlink(entry.path()).string().find("pipe:"),
              std::string::npos);
  }
  close(ours[0]);
  close(ours[1]);
}

TEST_F(ContextDeviceTest, MemoryMayOutliveItsDevice) {
  auto memory = Pooled("a");
  device_->OnContextLost([] { ADD_FAILURE() << "the device is gone"; });
  const pid_t context = device_->context_pid();
  device_.reset();
  EXPECT_EQ(kill(context, 0), 0);
  EXPECT_FALSE(memory->lost());
  memory.reset();
  EXPECT_EQ(kill(context, 0), -1);
}

TEST_F(ContextDeviceTest, ManyThreadsMakeAndFree) {
  constexpr int kThreads = 6;
  constexpr int kRounds = 20;
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const Kind kind = (t + round) % 2 == 0 ? Kind::kIpc : Kind::kMempool;
        auto memory = device_->Create({.kind = kind,
                                       .bytes = 2 * kMiB,
                                       .tenant = absl::StrCat("t", t % 3),
                                       .limit_bytes = 32 * kMiB});
        EXPECT_TRUE(memory.ok()) << memory.status();
        made += memory.ok();
        EXPECT_TRUE(device_->Pools().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, kThreads * kRounds);
  EXPECT_EQ(device_->context_pid(), 0);
  EXPECT_EQ(*device_->DriverFreeBytes(), 64 * kMiB);
}

}  // namespace
}  // namespace gpumemd
