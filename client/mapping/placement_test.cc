// SPDX-License-Identifier: Apache-2.0
// The device, the GPUs and the address that options request, against a fake daemon.
#include <string.h>
#include <sys/mman.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/testing/fake_daemon.h"
#include "common/cuda/driver.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace placement_test {

using absl::StatusCode;
using internal::FakeDaemon;

constexpr uint64_t kBytes = 64 * 1024;
constexpr char kGpu[] = "GPU-00000000-0000-0000-0000-000000000001";

// Returns an unused multiple of 2 MiB.
void* FreeAddress() {
  constexpr uintptr_t kMultiple = 2 << 20;
  // The kernel fills a hole from its end, so other threads do not map here.
  constexpr size_t kRoom = 1 << 30;
  void* const range = mmap(nullptr, kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(range, MAP_FAILED);
  munmap(range, kRoom);
  const auto begin = reinterpret_cast<uintptr_t>(range);
  return reinterpret_cast<void*>((begin + kMultiple - 1) / kMultiple * kMultiple);
}

class PlacementTest : public ::testing::Test {
 protected:
  explicit PlacementTest(std::vector<v1::Device> devices = {})
      : daemon_({.acquire =
                     [this](uint64_t session, const v1::AcquireRequest& request,
                            v1::AcquireResponse* response) {
                       asked_.push_back(request);
                       return daemon_.Grant(session, request, response);
                     },
                 .devices = std::move(devices)}) {}

  std::vector<v1::AcquireRequest> asked_;
  FakeDaemon daemon_;
  std::unique_ptr<Client> client_ =
      Client::Connect({.runtime_dir = daemon_.runtime_dir(), .timeout = absl::Seconds(20)}).value();
};

TEST_F(PlacementTest, TheDaemonIsAskedForWhatTheNamesMean) {
  const struct {
    DeviceName name;
    const char* uuid;
    bool most_free;
  } kCases[] = {{"", "", false},
                {"most-free", "", true},
                {"HOST", FakeDaemon::kDevice, false},
                {FakeDaemon::kDevice, FakeDaemon::kDevice, false},
                {"0", FakeDaemon::kDevice, false},
                {"cuda:0", FakeDaemon::kDevice, false},
                {"PINNED", FakeDaemon::kPinnedDevice, false}};
  for (const auto& [name, uuid, most_free] : kCases) {
    asked_.clear();
    EXPECT_TRUE(client_->Acquire({.bytes = 1, .device = name}).ok()) << name;
    ASSERT_EQ(asked_.size(), 1u);
    EXPECT_EQ(asked_[0].device_uuid(), uuid) << name;
    EXPECT_EQ(asked_[0].most_free(), most_free) << name;
  }
  asked_.clear();
  EXPECT_EQ(client_->Acquire({.bytes = 1, .device = "1"}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(client_->Acquire({.bytes = 1, .device = "GPU-1"}).status().code(),
            StatusCode::kNotFound);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(PlacementTest, MapsAtARequestedAddress) {
  void* const wished = FreeAddress();
  absl::StatusOr<std::vector<Segment>> segments =
      client_->AcquireMany({.bytes = kBytes, .address = wished}, 2);
  ASSERT_TRUE(segments.ok()) << segments.status();
  EXPECT_EQ(segments->front().data(), wished);
  EXPECT_EQ(segments->back().data(), static_cast<char*>(wished) + kBytes);
  EXPECT_EQ(client_->Acquire({.bytes = kBytes, .address = wished}).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(daemon_.live_leases(), 2u);

  const std::string ticket = segments->back().Share()->value;
  void* const elsewhere = FreeAddress();
  absl::StatusOr<Segment> same = client_->Open(ticket, {.read_only = true, .address = elsewhere});
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->data(), elsewhere);
  EXPECT_DEATH(memset(same->data(), 1, 1), "");
  EXPECT_EQ(client_->Open(ticket, {.address = wished}).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(daemon_.live_leases(), 3u);
}

TEST_F(PlacementTest, AnAddressForPinnedMemory) {
  void* const wished = FreeAddress();
  EXPECT_EQ(
      client_->Acquire({.bytes = kBytes, .kind = Kind::kPinned, .address = wished}).value().data(),
      wished);
}

TEST_F(PlacementTest, ImpossiblePlacementsAreRefusedBeforeAnythingIsAcquired) {
  char* const odd = static_cast<char*>(FreeAddress()) + 4096;
  EXPECT_EQ(client_->Acquire({.bytes = 1, .address = odd}).status().code(),
            StatusCode::kInvalidArgument);
  for (const Kind kind : {Kind::kIpc, Kind::kMempool}) {
    const absl::Status status =
        client_->Acquire({.bytes = 1, .kind = kind, .address = FreeAddress()}).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  }
  EXPECT_EQ(client_->Acquire({.bytes = 1, .map_devices = {FakeDaemon::kDevice}}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Acquire({.bytes = 1, .map_devices = {"GPU-1"}}).status().code(),
            StatusCode::kNotFound);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(PlacementTest, PlacementsThatAKindCannotMakeReleaseWhatWasOpened) {
  Segment segment = client_->Acquire({.bytes = 1}).value();
  const std::string ticket = segment.Share()->value;
  for (const v1::Kind kind : {v1::KIND_IPC, v1::KIND_MEMPOOL}) {
    daemon_.SetKind(segment.lease_id(), kind);
    EXPECT_EQ(client_->Open(ticket, {.read_only = true}).status().code(),
              StatusCode::kUnimplemented);
    EXPECT_EQ(client_->Open(ticket, {.address = FreeAddress()}).status().code(),
              StatusCode::kUnimplemented);
  }
  EXPECT_EQ(daemon_.live_leases(), 1u);
}

TEST_F(PlacementTest, OneAddressIsForOneRange) {
  Segment vmm = client_->Acquire({.bytes = 1}).value();
  Segment pinned = client_->Acquire({.bytes = 1, .kind = Kind::kPinned}).value();
  const std::vector<std::string> tickets = {vmm.Share()->value, pinned.Share()->value};
  EXPECT_EQ(client_->OpenMany(tickets, {.address = FreeAddress()}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(daemon_.live_leases(), 2u);
  EXPECT_TRUE(client_->OpenMany(tickets).ok());
}

class GpuPlacementTest : public PlacementTest {
 protected:
  static v1::Device Gpu() {
    v1::Device gpu;
    gpu.set_device_uuid(kGpu);
    gpu.set_backend(v1::BACKEND_CUDA);
    gpu.set_pci_bus_id("00000000:1B:00.0");
    gpu.add_kinds(v1::KIND_VMM);
    v1::PeerAccess* const peer = gpu.add_peers();
    peer->set_device_uuid("GPU-2");
    peer->set_access(true);
    peer->set_native_atomics(true);
    peer->set_performance_rank(3);
    return gpu;
  }

  GpuPlacementTest() : PlacementTest({Gpu()}) {}
};

TEST_F(GpuPlacementTest, AGpuThatThisProcessDoesNotSeeIsAnErrorAndItsLeaseReleased) {
  daemon_.GrantOn(kGpu);
  const absl::Status status = client_->Acquire({.bytes = kBytes, .device = "1b:00.0"}).status();
  if (CudaDriver::Get().ok()) {
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
  } else {
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  }
  EXPECT_THAT(asked_, ::testing::SizeIs(1));
  EXPECT_EQ(daemon_.live_leases(), 0u);

  const StatusCode unseen =
      CudaDriver::Get().ok() ? StatusCode::kNotFound : StatusCode::kUnimplemented;
  EXPECT_EQ(client_->Acquire({.bytes = kBytes, .map_devices = {kGpu}}).status().code(), unseen);
  EXPECT_EQ(client_->CreateEvent({.name = "x", .device = kGpu}).status().code(), unseen);
  EXPECT_THAT(asked_, ::testing::SizeIs(1));
}

TEST_F(GpuPlacementTest, WithoutAVisibleGpuNothingIsAskedFor) {
  const StatusCode unseen =
      CudaDriver::Get().ok() ? StatusCode::kNotFound : StatusCode::kUnimplemented;
  for (const Kind kind : {Kind::kDefault, Kind::kVmm, Kind::kIpc, Kind::kMempool}) {
    EXPECT_EQ(client_->Acquire({.bytes = 1, .kind = kind}).status().code(), unseen);
    EXPECT_EQ(client_->Acquire({.bytes = 1, .device = "most-free", .kind = kind}).status().code(),
              unseen);
  }
  EXPECT_EQ(client_->CreateEvent({.name = "x"}).status().code(), unseen);
  EXPECT_THAT(asked_, ::testing::IsEmpty());
  // Host memory needs none; the daemon reports that it has none.
  client_->Acquire({.bytes = 1, .kind = Kind::kPinned}).status().IgnoreError();
  EXPECT_THAT(asked_, ::testing::SizeIs(1));
}

TEST_F(GpuPlacementTest, DevicesTellOfTheirPeers) {
  const std::vector<DeviceInfo> devices = client_->Devices().value();
  ASSERT_EQ(devices.size(), 1u);
  ASSERT_EQ(devices[0].peers.size(), 1u);
  EXPECT_EQ(devices[0].peers[0].uuid, "GPU-2");
  EXPECT_TRUE(devices[0].peers[0].access);
  EXPECT_TRUE(devices[0].peers[0].native_atomics);
  EXPECT_EQ(devices[0].peers[0].performance_rank, 3);
}

}  // namespace placement_test
}  // namespace gpumem
