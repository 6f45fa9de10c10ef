#include "daemon/device/contract.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "daemon/device/contract_peer.h"
#include "daemon/device/cuda_vmm_device.h"
#include "daemon/device/host_device.h"

namespace gpumemd {
namespace {

using Allocations = std::vector<std::unique_ptr<Allocation>>;
using absl::StatusCode;
using testing::AllOf;
using testing::AnyOf;
using testing::Ge;
using testing::Le;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;
// By how much the free memory of a GPU changes without our doing.
constexpr uint64_t kNoiseBytes = 512 * kMiB;

std::unique_ptr<ContractPeer> StartPeer() {
  absl::StatusOr<std::unique_ptr<ContractPeer>> peer = ContractPeer::Start();
  EXPECT_TRUE(peer.ok()) << peer.status();
  return peer.ok() ? *std::move(peer) : nullptr;
}

int OpenDescriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

}  // namespace

ContractParam HostContract() {
  return {.name = "Host",
          .open = [] { return MakeHostDevice({.index = 0, .capacity_bytes = 64 * kMiB}); },
          .exact = true};
}

ContractParam CudaContract(int ordinal) {
  const auto open = [ordinal]() -> absl::StatusOr<std::unique_ptr<Device>> {
    absl::StatusOr<std::vector<std::string>> uuids = CudaDeviceUuids();
    if (!uuids.ok()) return uuids.status();
    if (static_cast<size_t>(ordinal) >= uuids->size()) {
      return absl::UnavailableError(absl::StrCat("there are only ", uuids->size(), " GPUs here"));
    }
    return OpenCudaVmmDevice((*uuids)[ordinal]);
  };
  return {.name = absl::StrCat("Cuda", ordinal), .open = open, .exact = false};
}

void DeviceContract::SetUp() {
  absl::StatusOr<std::unique_ptr<Device>> device = GetParam().open();
  if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status().message();
  ASSERT_TRUE(device.ok()) << device.status();
  device_ = *std::move(device);
}

std::unique_ptr<Allocation> DeviceContract::Create(uint64_t granules) {
  absl::StatusOr<std::unique_ptr<Allocation>> allocation =
      device().Create(Kind::kVmm, granules * info().granularity_bytes);
  EXPECT_TRUE(allocation.ok()) << allocation.status();
  return allocation.ok() ? *std::move(allocation) : nullptr;
}

uint64_t DeviceContract::FreeBytes() {
  const absl::StatusOr<uint64_t> bytes = device().DriverFreeBytes();
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.value_or(0);
}

bool DeviceContract::AwaitFreeBytes(uint64_t bytes) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (FreeBytes() < bytes) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

TEST_P(DeviceContract, DescribesItself) {
  EXPECT_TRUE(absl::StartsWith(info().uuid, info().backend == Backend::kHost ? "HOST-" : "GPU-"));
  EXPECT_EQ(info().uuid.size(), info().uuid.find('-') + 1 + 36);
  EXPECT_FALSE(info().name.empty());
  EXPECT_EQ(info().pci_bus_id.empty(), info().backend == Backend::kHost);
  EXPECT_GT(info().granularity_bytes, 0u);
  EXPECT_GT(info().capacity_bytes, 0u);
  EXPECT_EQ(info().capacity_bytes % info().granularity_bytes, 0u);
  EXPECT_THAT(info().kinds, testing::Contains(Kind::kVmm));
}

TEST_P(DeviceContract, RefusesSizesThatMakeNoSense) {
  const uint64_t granule = info().granularity_bytes;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, granule - 1, granule + 1}) {
    EXPECT_EQ(device().Create(Kind::kVmm, bytes).status().code(), StatusCode::kInvalidArgument)
        << bytes;
  }
}

TEST_P(DeviceContract, RefusesMoreThanItHas) {
  const uint64_t granule = info().granularity_bytes;
  const uint64_t most = ~uint64_t{0};
  for (const uint64_t bytes :
       {info().capacity_bytes + granule, uint64_t{1} << 63, most - most % granule}) {
    EXPECT_EQ(device().Create(Kind::kVmm, bytes).status().code(), StatusCode::kResourceExhausted)
        << bytes;
  }
}

TEST_P(DeviceContract, RefusesKindsThatItDoesNotMake) {
  EXPECT_EQ(device().Create(static_cast<Kind>(99), info().granularity_bytes).status().code(),
            StatusCode::kUnimplemented);
}

TEST_P(DeviceContract, DescriptorsAreCloseOnExec) {
  const std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_NE(allocation, nullptr);
  EXPECT_EQ(fcntl(allocation->fd(), F_GETFD), FD_CLOEXEC);
}

TEST_P(DeviceContract, WhatOneProcessWritesAnotherReads) {
  const std::unique_ptr<Allocation> allocation = Create(4);
  ASSERT_NE(allocation, nullptr);
  const uint64_t bytes = 4 * info().granularity_bytes;
  const auto writer = StartPeer();
  const auto reader = StartPeer();
  ASSERT_EQ(writer->Map(info(), {allocation->fd()}, bytes), absl::OkStatus());
  ASSERT_EQ(reader->Map(info(), {allocation->fd()}, bytes), absl::OkStatus());
  ASSERT_EQ(writer->WritePattern(1), absl::OkStatus());
  EXPECT_EQ(reader->ExpectPattern(1), absl::OkStatus());
  ASSERT_EQ(reader->WritePattern(2), absl::OkStatus());
  EXPECT_EQ(writer->ExpectPattern(2), absl::OkStatus());
  EXPECT_EQ(writer->ExpectPattern(1).code(), StatusCode::kDataLoss);  // the check can fail
}

TEST_P(DeviceContract, ManyAreMappedInOneRange) {
  Allocations allocations;
  std::vector<int> fds;
  for (int i = 0; i < 8; ++i) {
    allocations.push_back(Create(1));
    ASSERT_NE(allocations.back(), nullptr);
    fds.push_back(allocations.back()->fd());
  }
  const auto writer = StartPeer();
  const auto reader = StartPeer();
  ASSERT_EQ(writer->Map(info(), fds, info().granularity_bytes), absl::OkStatus());
  ASSERT_EQ(writer->WritePattern(3), absl::OkStatus());
  ASSERT_EQ(reader->Map(info(), fds, info().granularity_bytes), absl::OkStatus());
  EXPECT_EQ(reader->ExpectPattern(3), absl::OkStatus());
  // In another order it is another range: each descriptor is its own memory.
  std::swap(fds.front(), fds.back());
  ASSERT_EQ(reader->Map(info(), fds, info().granularity_bytes), absl::OkStatus());
  EXPECT_EQ(reader->ExpectPattern(3).code(), StatusCode::kDataLoss);
}

TEST_P(DeviceContract, OnlyTheWholeCanBeMapped) {
  const std::unique_ptr<Allocation> allocation = Create(2);
  ASSERT_NE(allocation, nullptr);
  const auto peer = StartPeer();
  for (const uint64_t granules : {1, 3}) {
    EXPECT_EQ(peer->Map(info(), {allocation->fd()}, granules * info().granularity_bytes).code(),
              StatusCode::kInvalidArgument)
        << granules;
  }
  EXPECT_EQ(peer->Map(info(), {allocation->fd()}, 2 * info().granularity_bytes), absl::OkStatus());
}

TEST_P(DeviceContract, ADescriptorOfSomethingElseMapsNothing) {
  const std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_NE(allocation, nullptr);
  const gpumem::UniqueFd other(open("/dev/null", O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(other.valid());
  const auto peer = StartPeer();
  EXPECT_EQ(
      peer->Map(info(), {allocation->fd(), other.get(), allocation->fd()}, info().granularity_bytes)
          .code(),
      StatusCode::kInvalidArgument);
  EXPECT_EQ(peer->Map(info(), {allocation->fd()}, info().granularity_bytes), absl::OkStatus());
  EXPECT_EQ(peer->ExpectZeros(), absl::OkStatus());
}

TEST_P(DeviceContract, ReadOnlyMappingsRefuseWrites) {
  const std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_NE(allocation, nullptr);
  const uint64_t bytes = info().granularity_bytes;
  const auto writer = StartPeer();
  const auto reader = StartPeer();
  ASSERT_EQ(writer->Map(info(), {allocation->fd()}, bytes), absl::OkStatus());
  ASSERT_EQ(writer->WritePattern(4), absl::OkStatus());
  ASSERT_EQ(reader->Map(info(), {allocation->fd()}, bytes, /*read_only=*/true), absl::OkStatus());
  EXPECT_EQ(reader->ExpectPattern(4), absl::OkStatus());
  // A process dies of it where memory is the host's; the CUDA driver answers an error.
  EXPECT_THAT(reader->WritePattern(5).code(),
              AnyOf(StatusCode::kUnavailable, StatusCode::kInternal));
  EXPECT_EQ(writer->ExpectPattern(4), absl::OkStatus());
}

TEST_P(DeviceContract, MemoryIsZeroAtFirstAndAgainAfterReuse) {
  const uint64_t granules = 16;
  const auto peer = StartPeer();
  for (int round = 0; round < 8; ++round) {
    const std::unique_ptr<Allocation> allocation = Create(granules);
    ASSERT_NE(allocation, nullptr);
    ASSERT_EQ(peer->Map(info(), {allocation->fd()}, granules * info().granularity_bytes),
              absl::OkStatus());
    EXPECT_EQ(peer->ExpectZeros(), absl::OkStatus()) << "round " << round;
    ASSERT_EQ(peer->WritePattern(round), absl::OkStatus());
    ASSERT_EQ(peer->Unmap(), absl::OkStatus());
  }
}

TEST_P(DeviceContract, MemorySurvivesTheDeathOfAHolder) {
  const std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_NE(allocation, nullptr);
  const uint64_t bytes = info().granularity_bytes;
  const auto writer = StartPeer();
  ASSERT_EQ(writer->Map(info(), {allocation->fd()}, bytes), absl::OkStatus());
  ASSERT_EQ(writer->WritePattern(6), absl::OkStatus());
  writer->Kill();
  const auto reader = StartPeer();
  ASSERT_EQ(reader->Map(info(), {allocation->fd()}, bytes), absl::OkStatus());
  EXPECT_EQ(reader->ExpectPattern(6), absl::OkStatus());
}

TEST_P(DeviceContract, ADescriptorAloneKeepsTheMemory) {
  std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_NE(allocation, nullptr);
  const uint64_t bytes = info().granularity_bytes;
  const auto keeper = StartPeer();
  ASSERT_EQ(keeper->Keep(allocation->fd()), absl::OkStatus());
  const auto writer = StartPeer();
  ASSERT_EQ(writer->Map(info(), {allocation->fd()}, bytes), absl::OkStatus());
  ASSERT_EQ(writer->WritePattern(7), absl::OkStatus());
  writer->Kill();
  allocation.reset();
  // Nobody maps it now, and its maker has let go of it.
  const absl::StatusOr<gpumem::UniqueFd> kept = keeper->GiveBack();
  ASSERT_TRUE(kept.ok()) << kept.status();
  ASSERT_TRUE(kept->valid());
  const auto reader = StartPeer();
  ASSERT_EQ(reader->Map(info(), {kept->get()}, bytes), absl::OkStatus());
  EXPECT_EQ(reader->ExpectPattern(7), absl::OkStatus());
}

TEST_P(DeviceContract, ReleasedBytesComeBack) {
  const uint64_t bytes = exact() ? info().capacity_bytes / 2 : 4 * kGiB;
  const uint64_t noise = exact() ? 0 : kNoiseBytes;
  ASSERT_NE(Create(1), nullptr);  // what the driver takes for itself, it has taken now
  const uint64_t before = FreeBytes();
  Allocations allocations;
  for (int i = 0; i < 4; ++i) {
    allocations.push_back(Create(bytes / 4 / info().granularity_bytes));
    ASSERT_NE(allocations.back(), nullptr);
  }
  EXPECT_THAT(FreeBytes(), AllOf(Ge(before - bytes - noise), Le(before - bytes + noise)));
  allocations.clear();
  EXPECT_TRUE(AwaitFreeBytes(before - noise)) << FreeBytes() << " of " << before << " came back";
}

TEST_P(DeviceContract, RefusesWhenItIsFull) {
  const uint64_t granules = exact() ? 1 : 4 * kGiB / info().granularity_bytes;
  const uint64_t bytes = granules * info().granularity_bytes;
  const uint64_t at_most = info().capacity_bytes / bytes;
  const uint64_t before = FreeBytes();
  Allocations allocations;
  absl::Status status;
  while (allocations.size() <= at_most) {
    absl::StatusOr<std::unique_ptr<Allocation>> allocation = device().Create(Kind::kVmm, bytes);
    status = allocation.status();
    if (!status.ok()) break;
    allocations.push_back(*std::move(allocation));
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  if (exact()) {
    EXPECT_EQ(allocations.size(), at_most);
  }
  ASSERT_FALSE(allocations.empty());
  allocations.pop_back();
  EXPECT_TRUE(AwaitFreeBytes(bytes));
  EXPECT_NE(Create(granules), nullptr);
  allocations.clear();
  EXPECT_TRUE(AwaitFreeBytes(before - (exact() ? 0 : kNoiseBytes)));
}

TEST_P(DeviceContract, LeaksNoDescriptors) {
  ASSERT_NE(Create(1), nullptr);  // the driver opens some for itself
  const int before = OpenDescriptors();
  for (int i = 0; i < 100; ++i) {
    const std::unique_ptr<Allocation> allocation = Create(1);
    ASSERT_NE(allocation, nullptr);
    EXPECT_EQ(OpenDescriptors(), before + 1);
    EXPECT_FALSE(device().Create(Kind::kVmm, info().capacity_bytes + 1).ok());
    EXPECT_FALSE(
        device().Create(Kind::kVmm, info().capacity_bytes + info().granularity_bytes).ok());
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_P(DeviceContract, RefusesWithoutLossWhenDescriptorsRunOut) {
  ASSERT_NE(Create(1), nullptr);
  const uint64_t before = FreeBytes();
  const int descriptors = OpenDescriptors();
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  {
    const rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const absl::Cleanup restore = [&limit] { setrlimit(RLIMIT_NOFILE, &limit); };
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(device().Create(Kind::kVmm, info().granularity_bytes).status().code(),
                StatusCode::kResourceExhausted);
    }
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_TRUE(AwaitFreeBytes(before - (exact() ? 0 : kNoiseBytes)));
  EXPECT_NE(Create(1), nullptr);
}

TEST_P(DeviceContract, ConcurrentCallsKeepTheCountExact) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 200;
  ASSERT_NE(Create(1), nullptr);
  const uint64_t before = FreeBytes();
  const int descriptors = OpenDescriptors();
  std::atomic<uint64_t> live{0};  // never more than the device's own count
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        // On the host device three threads' worth fits at one time, more or less.
        const uint64_t bytes = info().granularity_bytes * (1 + (t + round) % 16);
        absl::StatusOr<std::unique_ptr<Allocation>> allocation = device().Create(Kind::kVmm, bytes);
        if (!allocation.ok()) {
          EXPECT_EQ(allocation.status().code(), StatusCode::kResourceExhausted)
              << allocation.status();
          continue;
        }
        EXPECT_LE(live.fetch_add(bytes) + bytes, info().capacity_bytes);
        ++made;
        live.fetch_sub(bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(made.load(), kRounds);
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_TRUE(AwaitFreeBytes(before - (exact() ? 0 : kNoiseBytes)));
  if (exact()) {
    EXPECT_EQ(FreeBytes(), info().capacity_bytes);
  }
}

}  // namespace gpumemd
