// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/testing/contract.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "daemon/device/cuda_info.h"
#include "daemon/device/devices.h"

namespace gpumemd {
namespace {

using Allocations = std::vector<std::unique_ptr<Allocation>>;
using absl::StatusCode;
using testing::AllOf;
using testing::Ge;
using testing::Le;

using gpumem::kGiB;
using gpumem::kMiB;
// By how much the free memory of a GPU changes without our doing.
constexpr uint64_t kNoiseBytes = 512 * kMiB;

int OpenDescriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

}  // namespace

std::vector<ContractParam> HostContracts() {
  std::vector<ContractParam> params;
  for (const Kind kind : {Kind::kVmm, Kind::kMempool, Kind::kIpc}) {
    params.push_back({.name = absl::StrCat("Host_", KindName(kind)),
                      .kind = kind,
                      .open =
                          [](const std::string& dir) {
                            return OpenHostDevice({.capacity_bytes = 64 * kMiB}, dir);
                          },
                      .exact = true});
  }
  for (const Kind kind : {Kind::kPinned, Kind::kHost}) {
    params.push_back({.name = absl::StrCat("Host_", KindName(kind)),
                      .kind = kind,
                      .open =
                          [](const std::string&) {
                            return OpenPinnedDevice(64 * kMiB, Backend::kHost, nullptr);
                          },
                      .exact = true});
  }
  return params;
}

std::vector<ContractParam> CudaContracts(int ordinal) {
  const auto open = [ordinal](const std::string&) -> absl::StatusOr<std::unique_ptr<Device>> {
    absl::StatusOr<std::vector<std::string>> uuids = CudaDeviceUuids();
    if (!uuids.ok()) return uuids.status();
    if (static_cast<size_t>(ordinal) >= uuids->size()) {
      return absl::UnavailableError(absl::StrCat("there are only ", uuids->size(), " GPUs here"));
    }
    return OpenCudaDevice((*uuids)[ordinal]);
  };
  std::vector<ContractParam> params;
  for (const Kind kind : {Kind::kVmm, Kind::kMempool, Kind::kIpc}) {
    params.push_back({.name = absl::StrCat("Cuda", ordinal, "_", KindName(kind)),
                      .kind = kind,
                      .open = open,
                      .exact = false});
  }
  params.push_back(
      {.name = absl::StrCat("Cuda", ordinal, "_", KindName(Kind::kHost)),
       .kind = Kind::kHost,
       .open = [open](const std::string& dir) -> absl::StatusOr<std::unique_ptr<Device>> {
         const absl::StatusOr<std::unique_ptr<Device>> gpu = open(dir);
         if (!gpu.ok()) return gpu.status();
         return OpenPinnedDevice(64 * kMiB, Backend::kCuda, nullptr);
       },
       .exact = true,
       .user = ordinal});
  return params;
}

std::vector<ContractParam> ForEachIdentity(const std::vector<ContractParam>& params) {
  std::vector<ContractParam> all;
  for (const ContractParam& param : params) {
    for (const PeerIdentity identity : {PeerIdentity::kThisProcess, PeerIdentity::kSameUser,
                                        PeerIdentity::kOtherUser, PeerIdentity::kOwnNamespaces}) {
      all.push_back(param);
      all.back().identity = identity;
      all.back().name = absl::StrCat(param.name, "_", PeerIdentityName(identity));
    }
  }
  return all;
}

std::vector<ContractParam> OnlyContextBound(std::vector<ContractParam> params) {
  std::erase_if(params, [](const ContractParam& param) { return !IsContextBound(param.kind); });
  return params;
}

KindRules RulesOf(Kind kind) {
  switch (kind) {
    case Kind::kVmm:
    case Kind::kPinned:
    case Kind::kHost:
      return {.by_descriptor = true, .in_ranges = true, .read_only = true};
    case Kind::kMempool:
    case Kind::kIpc:
      return {.counted = true};
    case Kind::kTier:
    case Kind::kDriver:
      break;  // no process opens it
  }
  return {};
}

DeviceContract::DeviceContract() : runtime_dir_("/tmp/gpumem-contract.XXXXXX") {
  EXPECT_NE(mkdtemp(runtime_dir_.data()), nullptr);
  EXPECT_EQ(chmod(runtime_dir_.c_str(), 0755), 0);  // for other users
}

DeviceContract::~DeviceContract() {
  device_.reset();
  EXPECT_EQ(rmdir(runtime_dir_.c_str()), 0) << "something is left in " << runtime_dir_;
}

void DeviceContract::SetUp() {
  absl::StatusOr<std::unique_ptr<Device>> device = GetParam().open(runtime_dir_);
  if (absl::IsUnavailable(device.status()) || absl::IsUnimplemented(device.status())) {
    GTEST_SKIP() << device.status().message();
  }
  ASSERT_TRUE(device.ok()) << device.status();
  device_ = *std::move(device);
  const std::vector<Kind>& kinds = info().kinds;
  if (std::find(kinds.begin(), kinds.end(), kind()) == kinds.end()) {
    GTEST_SKIP() << info().uuid << " does not make kind " << KindName(kind());
  }
}

CreateSpec DeviceContract::Spec(uint64_t bytes, const std::string& tenant) const {
  return {.kind = kind(),
          .bytes = bytes,
          .tenant = tenant,
          .limit_bytes = device_->info().capacity_bytes};
}

std::unique_ptr<Allocation> DeviceContract::Create(uint64_t granules, const std::string& tenant) {
  absl::StatusOr<std::unique_ptr<Allocation>> allocation =
      device().Create(Spec(granules * granule(), tenant));
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

SharedMemory DeviceContract::Share(const Allocation& allocation, uint64_t granules) {
  // Kind host is of no GPU: the one that uses it maps it.
  const std::optional<int> user = GetParam().user;
  SharedMemory memory{.kind = kind(),
                      .device_uuid = user ? CudaDeviceUuids().value().at(*user) : info().uuid,
                      .runtime_dir = runtime_dir_,
                      .bytes = granules * granule(),
                      .data = allocation.export_data()};
  if (allocation.fd() >= 0) memory.fds.push_back(allocation.fd());
  if (const std::optional<ExportedPool> pool = allocation.pool()) {
    memory.pool_id = pool->id;
    memory.fds.push_back(pool->fd);
  }
  return memory;
}

std::unique_ptr<ContractPeer> DeviceContract::StartPeer() {
  absl::StatusOr<std::unique_ptr<ContractPeer>> peer = ContractPeer::Start(GetParam().identity);
  EXPECT_TRUE(peer.ok()) << peer.status();
  return peer.ok() ? *std::move(peer) : nullptr;
}

TEST_P(DeviceContract, DescribesItself) {
  EXPECT_TRUE(absl::StartsWith(info().uuid, info().backend == Backend::kCuda ? "GPU-"
                                            : IsHostMemory(info())           ? "PINNED-"
                                                                             : "HOST-"));
  EXPECT_EQ(info().uuid.size(), info().uuid.find('-') + 1 + 36);
  EXPECT_FALSE(info().name.empty());
  EXPECT_EQ(info().pci_bus_id.empty(), info().backend == Backend::kHost);
  EXPECT_GT(info().granularity_bytes, 0u);
  EXPECT_GT(info().capacity_bytes, 0u);
  EXPECT_EQ(info().capacity_bytes % info().granularity_bytes, 0u);
  EXPECT_EQ(granule() % info().granularity_bytes, 0u);
  EXPECT_THAT(info().kinds, testing::Contains(kind()));
  for (const PeerAccess& peer : info().peers) EXPECT_NE(peer.uuid, info().uuid);
}

TEST_P(DeviceContract, AnswersWithWhatSharesTheKind) {
  const std::unique_ptr<Allocation> allocation = Create(1);
  ASSERT_NE(allocation, nullptr);
  EXPECT_EQ(allocation->fd() >= 0, rules().by_descriptor);
  EXPECT_EQ(allocation->export_data().has_value(), !rules().by_descriptor);
  EXPECT_EQ(allocation->pool().has_value(), kind() == Kind::kMempool);
  EXPECT_EQ(device().context_pid() > 0, IsContextBound(kind()));
  EXPECT_FALSE(allocation->lost());
  const int fd = allocation->pool().has_value() ? allocation->pool()->fd : allocation->fd();
  if (fd >= 0) {
    EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
  }
}

TEST_P(DeviceContract, RefusesSizesThatMakeNoSense) {
  const uint64_t granule = this->granule();
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, granule - 1, granule + 1}) {
    EXPECT_EQ(device().Create(Spec(bytes)).status().code(), StatusCode::kInvalidArgument) << bytes;
  }
}

TEST_P(DeviceContract, RefusesMoreThanItHas) {
  const uint64_t granule = this->granule();
  const uint64_t most = ~uint64_t{0};
  for (const uint64_t bytes :
       {WholeGranules(info().capacity_bytes) + granule, uint64_t{1} << 63, most - most % granule}) {
    EXPECT_EQ(device().Create(Spec(bytes)).status().code(), StatusCode::kResourceExhausted)
        << bytes;
  }
}

TEST_P(DeviceContract, RefusesKindsThatItDoesNotMakeAndNamesThoseThatItDoes) {
  CreateSpec spec = Spec(granule());
  spec.kind = IsHostMemory(info()) ? Kind::kVmm : Kind::kPinned;
  const absl::Status refused = device().Create(spec).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(testing::HasSubstr(std::string(KindName(spec.kind))),
                    testing::HasSubstr(std::string(KindName(kind())))));
}

TEST_P(DeviceContract, ReleasedBytesComeBack) {
  const uint64_t bytes = exact() ? info().capacity_bytes / 2 : 4 * kGiB;
  const uint64_t noise = exact() ? 0 : kNoiseBytes;
  const auto keep = Create(1, "keeper");  // the driver has taken its part by now
  ASSERT_NE(keep, nullptr);
  const uint64_t before = FreeBytes();
  Allocations allocations;
  for (int i = 0; i < 4; ++i) {
    allocations.push_back(Create(bytes / 4 / granule()));
    ASSERT_NE(allocations.back(), nullptr);
  }
  EXPECT_THAT(FreeBytes(), AllOf(Ge(before - bytes - noise), Le(before - bytes + noise)));
  allocations.clear();
  EXPECT_TRUE(AwaitFreeBytes(before - noise)) << FreeBytes() << " of " << before << " came back";
}

TEST_P(DeviceContract, RefusesWhenItIsFull) {
  const auto keep = Create(1, "keeper");
  ASSERT_NE(keep, nullptr);
  const uint64_t granules = exact() ? 1 : 4 * kGiB / granule();
  const uint64_t bytes = granules * granule();
  const uint64_t before = FreeBytes();
  const uint64_t at_most = (exact() ? before : info().capacity_bytes) / bytes;
  Allocations allocations;
  absl::Status status;
  while (allocations.size() <= at_most) {
    absl::StatusOr<std::unique_ptr<Allocation>> allocation = device().Create(Spec(bytes));
    status = allocation.status();
    if (!status.ok()) break;
    allocations.push_back(*std::move(allocation));
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  if (exact()) {
    EXPECT_EQ(allocations.size(), at_most);
  }
  ASSERT_FALSE(allocations.empty());
  if (!exact() && kind() == Kind::kMempool) {
    // CUDA keeps memory exported from a pool until the pool is gone, with all its contents.
    allocations.clear();
  } else {
    allocations.pop_back();
  }
  EXPECT_TRUE(AwaitFreeBytes(bytes));
  EXPECT_NE(Create(granules), nullptr);
  allocations.clear();
  EXPECT_TRUE(AwaitFreeBytes(before - (exact() ? 0 : kNoiseBytes)));
}

TEST_P(DeviceContract, LeaksNoDescriptors) {
  const auto keep = Create(1);  // the driver opens some for itself
  ASSERT_NE(keep, nullptr);
  const int before = OpenDescriptors();
  for (int i = 0; i < 100; ++i) {
    const std::unique_ptr<Allocation> allocation = Create(1);
    ASSERT_NE(allocation, nullptr);
    // A separate pool: the first one takes nothing new once memory of it was freed.
    const bool own_pool = kind() == Kind::kMempool && i > 0;
    EXPECT_EQ(OpenDescriptors(), before + (rules().by_descriptor || own_pool ? 1 : 0));
    EXPECT_FALSE(device().Create(Spec(info().capacity_bytes + 1)).ok());
    EXPECT_FALSE(device().Create(Spec(WholeGranules(info().capacity_bytes) + granule())).ok());
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
      EXPECT_EQ(device().Create(Spec(granule())).status().code(), StatusCode::kResourceExhausted);
    }
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_TRUE(AwaitFreeBytes(before - (exact() ? 0 : kNoiseBytes)));
  EXPECT_NE(Create(1), nullptr);
}

TEST_P(DeviceContract, ConcurrentCallsKeepTheCountExact) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 200;
  const auto keep = Create(1, "keeper");
  ASSERT_NE(keep, nullptr);
  const uint64_t before = FreeBytes();
  const int descriptors = OpenDescriptors();
  std::atomic<uint64_t> live{0};  // never more than the device's own count
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        // On the host device three threads' worth fits at one time, more or less.
        const uint64_t bytes = granule() * (1 + (t + round) % 16);
        absl::StatusOr<std::unique_ptr<Allocation>> allocation = device().Create(Spec(bytes));
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
    EXPECT_EQ(FreeBytes(), info().capacity_bytes - granule());
  }
}

}  // namespace gpumemd
