// SPDX-License-Identifier: Apache-2.0
#include "daemon/tier/tier_device.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "daemon/device/memfd.h"

namespace gpumemd {
namespace tier_device_test {

using absl::StatusCode;
using gpumem::kMiB;
using gpumem::UniqueFd;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Small enough for ordinary pages on every machine.
TierOptions Small(uint64_t bytes) { return {.capacity_bytes = bytes, .huge_pages = false}; }

std::unique_ptr<TierDevice> Make(TierOptions options) {
  absl::StatusOr<std::unique_ptr<TierDevice>> device = MakeTierDevice(std::move(options));
  EXPECT_TRUE(device.ok()) << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

CreateSpec Spec(uint64_t bytes, std::string tenant = "red") {
  return {.kind = Kind::kTier, .bytes = bytes, .tenant = std::move(tenant)};
}

std::unique_ptr<Allocation> Create(Device& device, const CreateSpec& spec) {
  absl::StatusOr<std::unique_ptr<Allocation>> made = device.Create(spec);
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

UniqueFd Copy(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 3)); }

void Fill(const Allocation& allocation, char with) {
  for (const TierExtent& extent : allocation.tier_place()->extents) {
    const MemfdMapping mapping(allocation.tier_place()->fd, extent.offset, extent.bytes);
    ASSERT_TRUE(mapping.valid());
    std::fill_n(mapping.address(), mapping.bytes(), with);
  }
}

// True if each byte is one of these.
bool HasOnly(const Allocation& allocation, std::initializer_list<char> bytes) {
  bool all = true;
  for (const TierExtent& extent : allocation.tier_place()->extents) {
    const MemfdMapping mapping(allocation.tier_place()->fd, extent.offset, extent.bytes);
    all = all && mapping.valid() &&
          std::all_of(mapping.address(), mapping.address() + mapping.bytes(), [&](char byte) {
            return std::find(bytes.begin(), bytes.end(), byte) != bytes.end();
          });
  }
  return all;
}

bool IsAll(const Allocation& allocation, char with) { return HasOnly(allocation, {with}); }

uint64_t AllocatedBytes(int fd) {
  struct stat info = {};
  EXPECT_EQ(fstat(fd, &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

TEST(TierDevice, IsOneOfAKind) {
  const auto device = Make(Small(9 * kMiB));
  EXPECT_TRUE(IsHostTier(device->info()));
  EXPECT_TRUE(IsHostMemory(device->info()));
  EXPECT_EQ(device->info().uuid, kTierDeviceUuid);
  EXPECT_EQ(device->info().name, "host tier");
  EXPECT_EQ(device->info().capacity_bytes, 8 * kMiB);
  EXPECT_EQ(device->info().granularity_bytes, 2 * kMiB);
  EXPECT_FALSE(device->inherited());
  EXPECT_THAT(device->notices(), IsEmpty());
  EXPECT_EQ(device->Create({.kind = Kind::kVmm, .bytes = 2 * kMiB}).status().code(),
            StatusCode::kUnimplemented);
  EXPECT_EQ(device->Create(Spec(3 * kMiB)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeTierDevice(Small(2 * kMiB - 1)).status().code(), StatusCode::kInvalidArgument);
}

TEST(TierDevice, ItsFileIsSealed) {
  const auto device = Make(Small(8 * kMiB));
  struct stat file = {};
  ASSERT_EQ(fstat(device->file(), &file), 0);
  EXPECT_EQ(file.st_size, off_t{8 << 20});
  EXPECT_EQ(fcntl(device->file(), F_GETFD), FD_CLOEXEC);
  for (const off_t size : {off_t{0}, off_t{16 << 20}}) {
    EXPECT_EQ(ftruncate(device->file(), size), -1);
    EXPECT_EQ(errno, EPERM);
  }
}

TEST(TierDevice, ASegmentIsExtentsOfTheFile) {
  const auto device = Make(Small(8 * kMiB));
  const auto first = Create(*device, Spec(2 * kMiB));
  auto second = Create(*device, Spec(2 * kMiB));
  const auto third = Create(*device, Spec(2 * kMiB));
  EXPECT_EQ(first->fd(), -1);
  EXPECT_EQ(first->tier_place()->fd, device->file());
  EXPECT_THAT(first->tier_place()->extents,
              ElementsAre(TierExtent{.offset = 0, .bytes = 2 * kMiB}));
  EXPECT_EQ(*device->DriverFreeBytes(), 2 * kMiB);
  second.reset();
  EXPECT_EQ(*device->DriverFreeBytes(), 4 * kMiB);
  const auto split = Create(*device, Spec(4 * kMiB));
  EXPECT_THAT(split->tier_place()->extents,
              ElementsAre(TierExtent{.offset = 2 * kMiB, .bytes = 2 * kMiB},
                          TierExtent{.offset = 6 * kMiB, .bytes = 2 * kMiB}));
  EXPECT_EQ(device->Create(Spec(2 * kMiB)).status().code(), StatusCode::kResourceExhausted);
}

TEST(TierDevice, PagesAreAllocatedByCreateAndStaySo) {
  const auto device = Make(Small(8 * kMiB));
  EXPECT_EQ(AllocatedBytes(device->file()), 0u);
  auto made = Create(*device, Spec(4 * kMiB));
  EXPECT_EQ(AllocatedBytes(device->file()), 4 * kMiB);
  made.reset();
  EXPECT_EQ(AllocatedBytes(device->file()), 4 * kMiB);
  EXPECT_EQ(device->AwaitPrefault(), 4 * kMiB);
}

TEST(TierDevice, PagesAreAllocatedAheadIfWanted) {
  TierOptions options = Small(200 * kMiB);
  options.prefault = true;
  const auto device = Make(std::move(options));
  EXPECT_EQ(device->AwaitPrefault(), 200 * kMiB);
  EXPECT_EQ(AllocatedBytes(device->file()), 200 * kMiB);
}

TEST(TierDevice, MayEndWhilePagesAreAllocatedAhead) {
  TierOptions options = Small(512 * kMiB);
  options.prefault = true;
  const auto device = Make(std::move(options));
  const auto made = Create(*device, Spec(256 * kMiB));
  EXPECT_TRUE(IsAll(*made, 0));
}

TEST(TierDevice, AdvisesHugePages) {
  const auto device = Make({.capacity_bytes = 8 * kMiB});
  EXPECT_TRUE(IsAll(*Create(*device, Spec(8 * kMiB)), 0));
}

TEST(TierDevice, ContentsOfOtherTenantsAreZeroed) {
  const auto device = Make(Small(8 * kMiB));
  Fill(*Create(*device, Spec(8 * kMiB, "red")), 'r');
  EXPECT_TRUE(IsAll(*Create(*device, Spec(4 * kMiB, "red")), 'r'));
  // Without a name, each segment is another tenant's.
  EXPECT_TRUE(IsAll(*Create(*device, Spec(2 * kMiB, "")), 0));
  auto blue = Create(*device, Spec(8 * kMiB, "blue"));
  EXPECT_TRUE(IsAll(*blue, 0));
  Fill(*blue, 'b');
  blue.reset();
  EXPECT_TRUE(IsAll(*Create(*device, Spec(2 * kMiB, "red")), 0));
  EXPECT_TRUE(IsAll(*Create(*device, Spec(8 * kMiB, "red")), 0));
}

TEST(TierDevice, WhatLiesBetweenTheExtentsStays) {
  const auto device = Make(Small(6 * kMiB));
  auto first = Create(*device, Spec(2 * kMiB, "red"));
  const auto middle = Create(*device, Spec(2 * kMiB, "red"));
  auto last = Create(*device, Spec(2 * kMiB, "red"));
  for (const Allocation* each : {first.get(), middle.get(), last.get()}) Fill(*each, 'r');
  first.reset();
  last.reset();
  const auto blue = Create(*device, Spec(4 * kMiB, "blue"));
  ASSERT_EQ(blue->tier_place()->extents.size(), 2u);
  EXPECT_TRUE(IsAll(*blue, 0));
  EXPECT_TRUE(IsAll(*middle, 'r'));
}

TEST(TierDevice, AllocationsMayOutliveTheirDevice) {
  auto device = Make(Small(8 * kMiB));
  const auto made = Create(*device, Spec(4 * kMiB));
  device.reset();
  Fill(*made, 'r');
  EXPECT_TRUE(IsAll(*made, 'r'));
}

TEST(TierDevice, TakesOverTheFileOfAnEarlierDaemon) {
  auto before = Make(Small(8 * kMiB));
  auto first = Create(*before, Spec(2 * kMiB));
  auto kept = Create(*before, Spec(4 * kMiB));
  Fill(*first, 'f');
  Fill(*kept, 'k');
  const std::vector<TierExtent> place = kept->tier_place()->extents;
  TierOptions options = Small(8 * kMiB);
  options.file = Copy(before->file());
  first.reset(), kept.reset(), before.reset();

  const auto device = Make(std::move(options));
  EXPECT_TRUE(device->inherited());
  EXPECT_THAT(device->notices(), IsEmpty());
  EXPECT_EQ(device->AwaitPrefault(), 6 * kMiB);
  CreateSpec spec = Spec(4 * kMiB);
  spec.extents = place;
  auto adopted = device->Adopt(spec, UniqueFd());
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_TRUE(IsAll(**adopted, 'k'));
  EXPECT_EQ((*adopted)->tier_place()->extents, place);
  EXPECT_EQ(*device->DriverFreeBytes(), 4 * kMiB);
  // There is other memory in between. The tenant of the rest is unknown.
  const auto rest = Create(*device, Spec(4 * kMiB));
  EXPECT_TRUE(IsAll(*rest, 0));
  adopted->reset();
  EXPECT_TRUE(IsAll(*Create(*device, Spec(4 * kMiB)), 'k'));
}

TEST(TierDevice, AdoptsOnlyWhatFits) {
  const auto before = Make(Small(8 * kMiB));
  TierOptions options = Small(8 * kMiB);
  options.file = Copy(before->file());
  const auto device = Make(std::move(options));
  const auto adopt = [&](uint64_t bytes, std::vector<TierExtent> extents) {
    CreateSpec spec = Spec(bytes);
    spec.extents = std::move(extents);
    return device->Adopt(spec, UniqueFd());
  };
  const auto taken = adopt(2 * kMiB, {{.offset = 0, .bytes = 2 * kMiB}});
  ASSERT_TRUE(taken.ok()) << taken.status();
  for (const auto& refused :
       {adopt(4 * kMiB, {{.offset = 2 * kMiB, .bytes = 2 * kMiB}}), adopt(2 * kMiB, {}),
        adopt(2 * kMiB, {{.offset = 0, .bytes = 2 * kMiB}}),
        adopt(2 * kMiB, {{.offset = 8 * kMiB, .bytes = 2 * kMiB}})}) {
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(adopt(16 * kMiB, {{.offset = 0, .bytes = 16 * kMiB}}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(*device->DriverFreeBytes(), 6 * kMiB);
}

TEST(TierDevice, ANewFileHasNothingToAdopt) {
  const auto device = Make(Small(8 * kMiB));
  CreateSpec spec = Spec(2 * kMiB);
  spec.extents = {{.offset = 0, .bytes = 2 * kMiB}};
  EXPECT_EQ(device->Adopt(spec, UniqueFd()).status().code(), StatusCode::kInvalidArgument);
}

TEST(TierDevice, TheSizeOfAFileThatWasTakenOverStays) {
  const auto before = Make(Small(8 * kMiB));
  TierOptions options = Small(32 * kMiB);
  options.file = Copy(before->file());
  const auto device = Make(std::move(options));
  EXPECT_EQ(device->info().capacity_bytes, 8 * kMiB);
  EXPECT_THAT(device->notices(), ElementsAre(HasSubstr("keeps its size of 8.00 MiB")));
}

TEST(TierDevice, UsesNoOtherFiles) {
  const UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), off_t{8 << 20}), 0);
  auto odd = MakeSealedMemfd("odd", 3 * kMiB);
  ASSERT_TRUE(odd.ok());
  for (const int fd : {unsealed.get(), odd->get(), STDIN_FILENO}) {
    TierOptions options = Small(8 * kMiB);
    options.file = Copy(fd);
    const auto device = Make(std::move(options));
    EXPECT_FALSE(device->inherited());
    EXPECT_EQ(device->info().capacity_bytes, 8 * kMiB);
    EXPECT_THAT(device->notices(), ElementsAre(HasSubstr("unusable")));
  }
}

// A machine of 160 MiB, with 22 available: 12 to take.
class TierOnSmallMachine : public testing::Test {
 protected:
  TierOnSmallMachine() : root_("/tmp/gpumem-tier.XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    std::filesystem::create_directories(root_ + "/proc");
    std::ofstream(root_ + "/proc/meminfo") << "MemTotal: 163840 kB\nMemAvailable: 22528 kB\n";
  }
  ~TierOnSmallMachine() override { std::filesystem::remove_all(root_); }

  std::string root_;
};

TEST_F(TierOnSmallMachine, RefusesMoreThanTheMachineHas) {
  TierOptions options = Small(64 * kMiB);
  options.root = root_;
  const auto device = Make(std::move(options));
  EXPECT_THAT(device->notices(), ElementsAre(HasSubstr("needs 64.00 MiB")));
  EXPECT_EQ(device->Create(Spec(16 * kMiB)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(*device->DriverFreeBytes(), 64 * kMiB);
  EXPECT_EQ(AllocatedBytes(device->file()), 0u);
  auto made = Create(*device, Spec(12 * kMiB));
  made.reset();
  // Pages that are allocated take no more.
  std::ofstream(root_ + "/proc/meminfo") << "MemTotal: 163840 kB\nMemAvailable: 0 kB\n";
  made = Create(*device, Spec(12 * kMiB));
  EXPECT_EQ(device->Create(Spec(2 * kMiB)).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(TierOnSmallMachine, AllocatesAheadWhatTheMachineHas) {
  TierOptions options = Small(64 * kMiB);
  options.root = root_;
  options.prefault = true;
  EXPECT_EQ(Make(std::move(options))->AwaitPrefault(), 0u);  // less than a piece
}

TEST(TierDevice, ThreadsMayCreateAndFree) {
  const auto device = Make(Small(32 * kMiB));
  std::vector<std::thread> threads;
  for (const char tenant : {'a', 'b', 'c', 'd'}) {
    threads.emplace_back([&device, tenant] {
      for (int i = 0; i < 10; ++i) {
        const auto made =
            Create(*device, Spec(i % 2 == 0 ? 4 * kMiB : 8 * kMiB, std::string(1, tenant)));
        ASSERT_TRUE(HasOnly(*made, {0, tenant}));
        Fill(*made, tenant);
        ASSERT_TRUE(IsAll(*made, tenant));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*device->DriverFreeBytes(), 32 * kMiB);
}

}  // namespace tier_device_test
}  // namespace gpumemd
