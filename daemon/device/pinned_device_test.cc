// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/pinned_device.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "common/bytes.h"
#include "common/unique_fd.h"

namespace gpumemd {
namespace pinned_device_test {

using absl::StatusCode;

using gpumem::kMiB;

std::unique_ptr<Device> Make(uint64_t bytes) {
  absl::StatusOr<std::unique_ptr<Device>> device = MakePinnedDevice({.capacity_bytes = bytes});
  EXPECT_TRUE(device.ok()) << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

TEST(PinnedDevice, IsOneOfAKind) {
  const auto device = Make(9 * kMiB);
  EXPECT_TRUE(IsHostMemory(device->info()));
  EXPECT_EQ(device->info().uuid, kPinnedDeviceUuid);
  EXPECT_EQ(device->info().capacity_bytes, 8 * kMiB);
  EXPECT_EQ(device->info().granularity_bytes, 2 * kMiB);
  EXPECT_EQ(device->Create({.kind = Kind::kVmm, .bytes = 2 * kMiB}).status().code(),
            StatusCode::kUnimplemented);
  EXPECT_EQ(MakePinnedDevice({.capacity_bytes = 2 * kMiB - 1}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(PinnedDevice, ItsPagesAreThereFromTheStartAndSealed) {
  const auto device = Make(8 * kMiB);
  const auto made = device->Create({.kind = Kind::kPinned, .bytes = 4 * kMiB});
  ASSERT_TRUE(made.ok()) << made.status();
  struct stat file = {};
  ASSERT_EQ(fstat((*made)->fd(), &file), 0);
  EXPECT_EQ(file.st_size, off_t{4 << 20});
  EXPECT_EQ(file.st_blocks * 512, off_t{4 << 20});
  EXPECT_EQ(fcntl((*made)->fd(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(ftruncate((*made)->fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(PinnedDevice, RefusesMoreThanItsCapacity) {
  const auto device = Make(8 * kMiB);
  auto most = device->Create({.kind = Kind::kPinned, .bytes = 6 * kMiB});
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ(*device->DriverFreeBytes(), 2 * kMiB);
  EXPECT_EQ(device->Create({.kind = Kind::kPinned, .bytes = 4 * kMiB}).status().code(),
            StatusCode::kResourceExhausted);
  most->reset();
  EXPECT_TRUE(device->Create({.kind = Kind::kPinned, .bytes = 8 * kMiB}).ok());
  EXPECT_EQ(*device->DriverFreeBytes(), 8 * kMiB);
}

TEST(PinnedDevice, RefusesWhatTheMachineDoesNotHave) {
  constexpr uint64_t kHuge = uint64_t{1} << 50;
  const auto device = Make(kHuge);
  const auto refused = device->Create({.kind = Kind::kPinned, .bytes = kHuge});
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(*device->DriverFreeBytes(), kHuge);
}

TEST(PinnedDevice, BothKindsShareItsCapacity) {
  const auto device = *MakePinnedDevice(
      {.capacity_bytes = 8 * kMiB, .host_kind = PinnedDeviceOptions::HostKind::kMemfd});
  EXPECT_TRUE(IsHostMemory(device->info()));
  EXPECT_THAT(device->info().kinds, testing::ElementsAre(Kind::kPinned, Kind::kHost));
  const auto pinned = device->Create({.kind = Kind::kPinned, .bytes = 4 * kMiB});
  const auto host = device->Create({.kind = Kind::kHost, .bytes = 4 * kMiB});
  ASSERT_TRUE(pinned.ok() && host.ok()) << pinned.status() << host.status();
  EXPECT_EQ(device->Create({.kind = Kind::kHost, .bytes = 2 * kMiB}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(Make(8 * kMiB)->Create({.kind = Kind::kHost, .bytes = 2 * kMiB}).status().code(),
            StatusCode::kUnimplemented);
}

TEST(PinnedDevice, MemoryOfTheDriverIsItsDescriptor) {
  uint64_t made = 0;
  const auto device =
      *MakePinnedDevice({.capacity_bytes = 8 * kMiB,
                         .host_kind = PinnedDeviceOptions::HostKind::kDriver,
                         .make_host = [&](uint64_t bytes) -> absl::StatusOr<gpumem::UniqueFd> {
                           if (made > 0) return absl::ResourceExhaustedError("once");
                           made = bytes;
                           return gpumem::UniqueFd(eventfd(0, EFD_CLOEXEC));
                         }});
  auto host = device->Create({.kind = Kind::kHost, .bytes = 6 * kMiB});
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ(made, 6 * kMiB);
  EXPECT_EQ(device->Create({.kind = Kind::kHost, .bytes = 2 * kMiB}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(*device->DriverFreeBytes(), 2 * kMiB);
  // What an earlier daemon made, and a memfd that is none.
  const CreateSpec kept{.kind = Kind::kHost, .bytes = 6 * kMiB};
  gpumem::UniqueFd again(dup((*host)->fd()));
  host->reset();
  EXPECT_TRUE(device->Adopt(kept, std::move(again)).ok());
  EXPECT_EQ(device
                ->Adopt({.kind = Kind::kPinned, .bytes = 2 * kMiB},
                        gpumem::UniqueFd(eventfd(0, EFD_CLOEXEC)))
                .status()
                .code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(*device->DriverFreeBytes(), 8 * kMiB);
}

}  // namespace pinned_device_test
}  // namespace gpumemd
