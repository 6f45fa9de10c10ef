// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/bytes.h"
#include "daemon/device/cuda_info.h"
#include "daemon/device/machine_memory.h"
#include "daemon/device/pinned_device.h"

namespace gpumemd {
namespace devices_test {

using absl::StatusCode;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using gpumem::kMiB;

TEST(OpenDevices, MakesAsManyHostDevicesAsAskedFor) {
  const absl::StatusOr<Devices> host =
      OpenDevices({.backend = Backend::kHost, .host_devices = 3, .host_device_bytes = 64 * kMiB});
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ(host->backend, Backend::kHost);
  EXPECT_THAT(host->notices, IsEmpty());
  ASSERT_THAT(host->devices, SizeIs(3));
  EXPECT_EQ(host->devices[2]->info().uuid, "HOST-00000002-0000-0000-0000-000000000000");
  EXPECT_EQ(host->devices[2]->info().capacity_bytes, 64 * kMiB);
}

TEST(OpenDevices, HostDevicesMakeEveryKindAndUseEachOthers) {
  const absl::StatusOr<Devices> host =
      OpenDevices({.backend = Backend::kHost, .runtime_dir = "/tmp", .host_devices = 2});
  ASSERT_TRUE(host.ok()) << host.status();
  const DeviceInfo& info = host->devices[1]->info();
  EXPECT_THAT(info.kinds,
              testing::ElementsAre(Kind::kVmm, Kind::kMempool, Kind::kIpc, Kind::kDriver));
  ASSERT_THAT(info.peers, SizeIs(1));
  EXPECT_EQ(info.peers[0].uuid, host->devices[0]->info().uuid);
  EXPECT_TRUE(info.peers[0].access);
}

TEST(OpenDevices, HostDevicesCopyToTheHostTier) {
  const absl::StatusOr<Devices> host =
      OpenDevices({.backend = Backend::kHost, .runtime_dir = "/tmp", .pinned_bytes = 64 * kMiB});
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ(host->devices[0]->Copy({}), absl::OkStatus());
  EXPECT_EQ(host->devices[1]->Copy({}).code(), StatusCode::kUnimplemented);
}

TEST(OpenDevices, PinnedMemoryIsTheLastDevice) {
  const absl::StatusOr<Devices> host =
      OpenDevices({.backend = Backend::kHost, .pinned_bytes = 64 * kMiB, .host_devices = 2});
  ASSERT_TRUE(host.ok()) << host.status();
  ASSERT_THAT(host->devices, SizeIs(3));
  EXPECT_EQ(host->devices[2]->info().uuid, kPinnedDeviceUuid);
  EXPECT_THAT(host->devices[2]->info().kinds, testing::ElementsAre(Kind::kPinned, Kind::kHost));
  EXPECT_EQ(host->devices[2]->info().capacity_bytes, 64 * kMiB);
  if (!HasFreeHugePages()) {
    EXPECT_THAT(host->notices, testing::ElementsAre(HasSubstr("vm.nr_hugepages")));
  }
  EXPECT_EQ(OpenDevices({.backend = Backend::kHost, .pinned_bytes = 1}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(OpenDevices, RefusesHostDevicesThatHoldNothing) {
  EXPECT_EQ(OpenDevices({.backend = Backend::kHost, .host_devices = 0}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenDevices({.backend = Backend::kHost, .host_device_bytes = 1}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(OpenDevices, TakesTheHostByItselfOnlyWithoutCudaAndSaysWhy) {
  const absl::StatusOr<Devices> devices = OpenDevices({});
  ASSERT_TRUE(devices.ok()) << devices.status();
  const absl::StatusOr<std::vector<std::string>> gpus = CudaDeviceUuids();
  if (gpus.ok()) {
    EXPECT_EQ(devices->backend, Backend::kCuda);
    EXPECT_EQ(devices->devices.front()->info().uuid, gpus->front());
    return;
  }
  EXPECT_EQ(devices->backend, Backend::kHost);
  ASSERT_THAT(devices->notices, SizeIs(1));
  EXPECT_THAT(devices->notices.front(), HasSubstr(std::string(gpus.status().message())));
}

TEST(OpenDevices, DoesNotFallBackWhereCudaIsAskedFor) {
  const absl::StatusOr<std::vector<std::string>> gpus = CudaDeviceUuids();
  if (gpus.ok()) GTEST_SKIP() << "there is a GPU here";
  const absl::StatusOr<Devices> devices = OpenDevices({.backend = Backend::kCuda});
  EXPECT_EQ(devices.status(), gpus.status());
  EXPECT_EQ(devices.status().code(), StatusCode::kUnavailable);
}

}  // namespace devices_test
}  // namespace gpumemd
