// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/testing/fault_injection.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "daemon/device/host_device.h"

namespace gpumemd {
namespace {

using gpumem::kMiB;

std::unique_ptr<Device> Host() { return *MakeHostDevice({.capacity_bytes = 64 * kMiB}); }

TEST(FaultInjection, PassesOnWhatThePlanAllows) {
  const auto device = InjectFaults(Host(), [](const DeviceOp&) { return absl::OkStatus(); });
  EXPECT_EQ(device->info().capacity_bytes, 64 * kMiB);
  const auto allocation = device->Create({.kind = Kind::kVmm, .bytes = 2 * kMiB});
  ASSERT_TRUE(allocation.ok());
  EXPECT_GE((*allocation)->fd(), 0);
  EXPECT_EQ(*device->DriverFreeBytes(), 62 * kMiB);
  EXPECT_EQ(device->Create({.kind = Kind::kVmm, .bytes = 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(FaultInjection, FailsWhatThePlanRefuses) {
  const auto device = InjectFaults(Host(), [](const DeviceOp& op) -> absl::Status {
    if (op.type == DeviceOp::Type::kCreate && op.bytes > 2 * kMiB) {
      return absl::InternalError("CUDA_ERROR_UNKNOWN");
    }
    if (op.type == DeviceOp::Type::kDriverFreeBytes) return absl::UnavailableError("no NVML");
    return absl::OkStatus();
  });
  EXPECT_TRUE(device->Create({.kind = Kind::kVmm, .bytes = 2 * kMiB}).ok());
  EXPECT_EQ(device->Create({.kind = Kind::kVmm, .bytes = 4 * kMiB}).status(),
            absl::InternalError("CUDA_ERROR_UNKNOWN"));
  EXPECT_EQ(device->DriverFreeBytes().status(), absl::UnavailableError("no NVML"));
}

TEST(FaultInjection, AsksBeforeAnAllocationGoes) {
  uint64_t destroyed = 0;
  auto device = InjectFaults(Host(), [&destroyed](const DeviceOp& op) {
    if (op.type != DeviceOp::Type::kDestroy) return absl::OkStatus();
    destroyed += op.bytes;
    return absl::InternalError("too late to refuse");
  });
  auto allocation = device->Create({.kind = Kind::kVmm, .bytes = 6 * kMiB});
  ASSERT_TRUE(allocation.ok());
  device.reset();
  EXPECT_EQ(destroyed, 0u);
  allocation->reset();
  EXPECT_EQ(destroyed, 6 * kMiB);
}

TEST(FaultInjection, AGateHoldsCallsUpUntilItOpens) {
  Gate gate;
  const auto device = InjectFaults(Host(), [&gate](const DeviceOp& op) {
    if (op.type == DeviceOp::Type::kCreate) gate.Pass();
    return absl::OkStatus();
  });
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back(
        [&] { made += device->Create({.kind = Kind::kVmm, .bytes = 2 * kMiB}).ok(); });
  }
  gate.AwaitArrivals(3);
  EXPECT_EQ(made.load(), 0);
  gate.Open();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made.load(), 3);
  EXPECT_TRUE(device->Create({.kind = Kind::kVmm, .bytes = 2 * kMiB}).ok());
}

}  // namespace
}  // namespace gpumemd
