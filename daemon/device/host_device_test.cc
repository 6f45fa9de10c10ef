// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/host_device.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"

namespace gpumemd {
namespace host_device_test {

using absl::StatusCode;

using gpumem::kMiB;
constexpr uint64_t kTiB = uint64_t{1} << 40;

std::unique_ptr<Device> Make(const HostDeviceOptions& options) {
  absl::StatusOr<std::unique_ptr<Device>> device = MakeHostDevice(options);
  EXPECT_TRUE(device.ok()) << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

std::unique_ptr<Allocation> Create(Device& device, uint64_t bytes) {
  absl::StatusOr<std::unique_ptr<Allocation>> allocation =
      device.Create({.kind = Kind::kVmm, .bytes = bytes});
  EXPECT_TRUE(allocation.ok()) << allocation.status();
  return allocation.ok() ? *std::move(allocation) : nullptr;
}

TEST(HostDevice, IsNamedByItsIndex) {
  EXPECT_EQ(Make({.index = 0, .capacity_bytes = 8 * kMiB})->info().uuid,
            "HOST-00000000-0000-0000-0000-000000000000");
  EXPECT_EQ(Make({.index = 0x1f, .capacity_bytes = 8 * kMiB})->info().uuid,
            "HOST-0000001f-0000-0000-0000-000000000000");
}

TEST(HostDevice, RoundsItsCapacityDownToTheGranularity) {
  const auto device = Make({.capacity_bytes = 7 * kMiB + 1});
  EXPECT_EQ(device->info().granularity_bytes, 2 * kMiB);
  EXPECT_EQ(device->info().capacity_bytes, 6 * kMiB);
}

TEST(HostDevice, TakesAnyGranularityOfWholePages) {
  const auto device = Make({.capacity_bytes = 64 << 10, .granularity_bytes = 4 << 10});
  EXPECT_NE(Create(*device, 4 << 10), nullptr);
  EXPECT_EQ(device->Create({.kind = Kind::kVmm, .bytes = 2 << 10}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(HostDevice, RefusesOptionsThatMakeNoSense) {
  const HostDeviceOptions bad[] = {
      {.capacity_bytes = 0},
      {.capacity_bytes = 2 * kMiB - 1},
      {.capacity_bytes = 2 * kMiB, .granularity_bytes = 0},
      {.capacity_bytes = 2 * kMiB, .granularity_bytes = 1000},
  };
  for (const HostDeviceOptions& options : bad) {
    EXPECT_EQ(MakeHostDevice(options).status().code(), StatusCode::kInvalidArgument)
        << options.capacity_bytes << " " << options.granularity_bytes;
  }
}

TEST(HostDevice, ExactlyFullPassesAndOneGranuleMoreFails) {
  const auto device = Make({.capacity_bytes = 8 * kMiB});
  auto first = Create(*device, 6 * kMiB);
  auto second = Create(*device, 2 * kMiB);
  EXPECT_EQ(*device->DriverFreeBytes(), 0u);
  EXPECT_EQ(device->Create({.kind = Kind::kVmm, .bytes = 2 * kMiB}).status().code(),
            StatusCode::kResourceExhausted);
  second.reset();
  EXPECT_EQ(*device->DriverFreeBytes(), 2 * kMiB);
  EXPECT_EQ(device->Create({.kind = Kind::kVmm, .bytes = 4 * kMiB}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_NE(Create(*device, 2 * kMiB), nullptr);
}

TEST(HostDevice, ASegmentCannotBeTruncatedOrSealed) {
  const auto device = Make({.capacity_bytes = 8 * kMiB});
  const auto allocation = Create(*device, 4 * kMiB);
  // A client's view: a separate descriptor, opened anew, of the same memory.
  const std::string path = absl::StrCat("/proc/self/fd/", allocation->fd());
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  for (const off_t size : {off_t{0}, off_t{2 << 20}, off_t{8 << 20}}) {
    EXPECT_EQ(ftruncate(fd, size), -1);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_EQ(open(path.c_str(), O_RDWR | O_TRUNC), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
  struct stat file = {};
  ASSERT_EQ(fstat(allocation->fd(), &file), 0);
  EXPECT_EQ(file.st_size, off_t{4 << 20});
  close(fd);
}

TEST(HostDevice, CommitsMemoryOnlyAsItIsWritten) {
  const auto device = Make({.capacity_bytes = 2 * kTiB});
  const auto allocation = Create(*device, kTiB);
  ASSERT_NE(allocation, nullptr);
  struct stat file = {};
  ASSERT_EQ(fstat(allocation->fd(), &file), 0);
  EXPECT_EQ(file.st_blocks, 0);
}

TEST(HostDevice, AllocationsMayOutliveTheirDevice) {
  auto device = Make({.capacity_bytes = 8 * kMiB});
  const auto allocation = Create(*device, 2 * kMiB);
  device.reset();
  struct stat file = {};
  EXPECT_EQ(fstat(allocation->fd(), &file), 0);
  EXPECT_EQ(file.st_size, off_t{2 << 20});
}

}  // namespace host_device_test
}  // namespace gpumemd
