// SPDX-License-Identifier: Apache-2.0
// Behaviour of the client library that only GPUs can show: sessions of one process that share the
// driver's mappings; several GPUs, hidden or in another order; and unfinished work.
#include "gpumem/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/cuda/context.h"
#include "common/cuda/device_copy.h"
#include "common/cuda/driver.h"
#include "common/unix_channel.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"

namespace gpumem {
namespace client_test {

using testing::Child;
using testing::DaemonProcess;
using testing::Hear;
using testing::kParentChannel;
using testing::Say;

constexpr uint64_t kBytes = 4 << 20;
constexpr Kind kGpuKinds[] = {Kind::kVmm, Kind::kIpc, Kind::kMempool};

// Done by that GPU.
absl::Status Set(const std::string& gpu, void* data, uint8_t value) {
  auto copier = DeviceCopier::ForCuda(gpu);
  return copier.ok() ? (*copier)->Fill(data, value, kBytes) : copier.status();
}

absl::Status Expect(const std::string& gpu, const void* data, uint8_t value) {
  auto copier = DeviceCopier::ForCuda(gpu);
  if (!copier.ok()) return copier.status();
  std::vector<uint8_t> bytes(kBytes);
  if (absl::Status status = (*copier)->CopyOut(bytes.data(), data, kBytes); !status.ok()) {
    return status;
  }
  for (uint64_t i = 0; i < kBytes; ++i) {
    if (bytes[i] == value) continue;
    return absl::DataLossError(absl::StrCat("byte ", i, " is ", bytes[i], ", not ", value));
  }
  return absl::OkStatus();
}

std::vector<std::string> Gpus(Client& client) {
  std::vector<std::string> uuids;
  const std::vector<DeviceInfo> devices = client.Devices().value();
  for (const DeviceInfo& device : devices) {
    if (device.backend == Backend::kCuda) uuids.push_back(device.uuid);
  }
  return uuids;
}

bool ArePeers(Client& client) {
  int peers = 0;
  const std::vector<DeviceInfo> devices = client.Devices().value();
  for (const DeviceInfo& device : devices) {
    for (const PeerAccess& peer : device.peers) peers += peer.access;
  }
  return peers >= 2;
}

class GpuClient : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start({.backend = "cuda"});
    if (!daemon.ok()) GTEST_SKIP() << daemon.status();
    daemon_ = *std::move(daemon);
    auto client = daemon_->Connect();
    ASSERT_OK(client);
    client_ = *std::move(client);
    gpus_ = Gpus(*client_);
    ASSERT_FALSE(gpus_.empty());
  }

  // Runs one of the roles below, which are tests that are not run otherwise, in a process that
  // sees these GPUs. Its exit code.
  int RunRole(const std::string& role, const std::vector<std::string>& visible,
              const std::vector<std::string>& tickets = {}) {
    Child child({"/proc/self/exe", "--gtest_also_run_disabled_tests",
                 absl::StrCat("--gtest_filter=DISABLED_GpuClientRole.", role)},
                {{"CUDA_VISIBLE_DEVICES", absl::StrJoin(visible, ",")},
                 {"GPUMEM_RUNTIME_DIR", daemon_->runtime_dir()},
                 {"GPUMEM_TEST_TICKETS", absl::StrJoin(tickets, ",")}});
    return child.Wait();
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  std::vector<std::string> gpus_;
};

// A role with the parent's inputs.
class DISABLED_GpuClientRole : public ::testing::Test {
 protected:
  std::unique_ptr<Client> client_ = Client::Connect().value();
  const std::vector<std::string> visible_ = FromEnvironment("CUDA_VISIBLE_DEVICES");
  const std::vector<std::string> tickets_ = FromEnvironment("GPUMEM_TEST_TICKETS");

 private:
  static std::vector<std::string> FromEnvironment(const char* name) {
    const char* const value = std::getenv(name);
    if (value == nullptr) return {};
    return absl::StrSplit(value, ',', absl::SkipEmpty());
  }
};

TEST_F(GpuClient, TwoSessionsOfOneProcessDoNotPullMemoryFromUnderEachOther) {
  auto other = daemon_->Connect();
  ASSERT_OK(other);
  const std::string& gpu = gpus_[0];
  for (const Kind kind : kGpuKinds) {
    SCOPED_TRACE(KindName(kind));
    auto first = client_->Acquire({.bytes = kBytes, .device = gpu, .kind = kind});
    ASSERT_OK(first);
    ASSERT_OK(Set(gpu, first->data(), 0x11));
    auto second = (*other)->Open(first->Share()->value);
    ASSERT_OK(second);
    EXPECT_EQ(first->data() == second->data(), kind != Kind::kVmm);
    EXPECT_OK(Expect(gpu, second->data(), 0x11));
    ASSERT_OK(first->Release());
    EXPECT_OK(Expect(gpu, second->data(), 0x11));
    EXPECT_OK(Set(gpu, second->data(), 0x22));
    // And the other way about, opened anew.
    auto third = client_->Open(second->Share()->value);
    ASSERT_OK(third);
    ASSERT_OK(second->Release());
    EXPECT_OK(Expect(gpu, third->data(), 0x22));
    EXPECT_OK(Set(gpu, third->data(), 0x33));
  }
}

TEST_F(GpuClient, TwoGpusUseOneSegmentInWhicheverOrderItIsOpened) {
  if (gpus_.size() < 2) GTEST_SKIP() << "needs two GPUs";
  if (!ArePeers(*client_)) GTEST_SKIP() << "needs two GPUs with peer access";
  auto other = daemon_->Connect();
  ASSERT_OK(other);
  using Users = std::vector<std::string>;
  const struct {
    Users first, second;
  } kOrders[] = {
      {{gpus_[0], gpus_[1]}, {}},        {{gpus_[1], gpus_[0]}, {}}, {{}, {gpus_[1]}},
      {{gpus_[1]}, {gpus_[0]}},          {{gpus_[1]}, {}},           {{gpus_[0]}, {gpus_[1]}},
      {{gpus_[1]}, {gpus_[0], gpus_[1]}}};
  for (const Kind kind : kGpuKinds) {
    for (const auto& [first, second] : kOrders) {
      SCOPED_TRACE(absl::StrCat(KindName(kind), " for ", absl::StrJoin(first, "+"), " then ",
                                absl::StrJoin(second, "+")));
      auto one = client_->Acquire(
          {.bytes = kBytes, .device = gpus_[0], .kind = kind, .map_devices = first});
      if (kind == Kind::kIpc && first.size() > 1) {
        EXPECT_STATUS(one, kUnimplemented, "one device");
        continue;
      }
      ASSERT_OK(one);
      auto two = (*other)->Open(one->Share()->value, {.map_devices = second});
      if (kind == Kind::kIpc && second.size() > 1) {
        EXPECT_STATUS(two, kUnimplemented, "one device");
        continue;
      }
      ASSERT_OK(two);
      const auto has = [](const Users& users, const std::string& gpu) {
        return std::find(users.begin(), users.end(), gpu) != users.end();
      };
      void* const by_0 = first.empty() || has(first, gpus_[0]) ? one->data() : two->data();
      void* const by_1 = has(first, gpus_[1]) ? one->data() : two->data();
      EXPECT_OK(Set(gpus_[1], by_1, 0x51));
      EXPECT_OK(Expect(gpus_[0], by_0, 0x51));
      EXPECT_OK(Set(gpus_[0], by_0, 0x52));
      EXPECT_OK(Expect(gpus_[1], by_1, 0x52));
      // The end of one session does not unmap the other's mappings for a GPU.
      if (has(second, gpus_[1])) {
        ASSERT_OK(one->Release());
        EXPECT_OK(Set(gpus_[1], two->data(), 0x53));
        EXPECT_OK(Expect(gpus_[1], two->data(), 0x53));
      }
    }
  }
}

TEST_F(GpuClient, AGpuMayBeHiddenFromWhoUsesItsMemory) {
  if (gpus_.size() < 2) GTEST_SKIP() << "needs two GPUs";
  if (!ArePeers(*client_)) GTEST_SKIP() << "needs two GPUs with peer access";
  std::vector<Segment> segments;
  std::vector<std::string> tickets;
  for (const Kind kind : kGpuKinds) {
    auto segment = client_->Acquire({.bytes = kBytes, .device = gpus_[0], .kind = kind});
    ASSERT_OK(segment);
    ASSERT_OK(Set(gpus_[0], segment->data(), 0x61));
    tickets.push_back(segment->Share()->value);
    segments.push_back(*std::move(segment));
  }
  auto named = client_->CreateEvent({.name = "hidden", .device = gpus_[0]});
  ASSERT_OK(named);
  ASSERT_OK(named->Record(nullptr));
  auto beside = client_->CreateEvent({.segment = &segments[0]});
  ASSERT_OK(beside);
  ASSERT_OK(beside->Record(nullptr));
  EXPECT_EQ(RunRole("SeesTheOtherGpuAlone", {gpus_[1]}, tickets), 0);
  for (const Segment& segment : segments) {
    EXPECT_OK(Expect(gpus_[0], segment.data(), 0x62)) << KindName(segment.kind());
  }
}

TEST_F(DISABLED_GpuClientRole, SeesTheOtherGpuAlone) {
  ASSERT_EQ(visible_.size(), 1u);
  ASSERT_EQ(tickets_.size(), std::size(kGpuKinds));
  const std::string& mine = visible_[0];
  for (const Kind kind : {Kind::kDefault, Kind::kVmm, Kind::kIpc, Kind::kMempool}) {
    for (const char* const device : {"", "most-free", "0"}) {
      SCOPED_TRACE(absl::StrCat(KindName(kind), " on ", device));
      auto segment = client_->Acquire({.bytes = kBytes, .device = device, .kind = kind});
      ASSERT_OK(segment);
      EXPECT_EQ(segment->device_uuid(), mine);
      EXPECT_OK(Set(mine, segment->data(), 1));
    }
  }
  Segment opened;
  for (const std::string& ticket : tickets_) {
    EXPECT_STATUS(client_->Open(ticket), kNotFound, "map_devices");
    auto segment = client_->Open(ticket, {.map_devices = {"0"}});
    ASSERT_OK(segment);
    SCOPED_TRACE(KindName(segment->kind()));
    EXPECT_NE(segment->device_uuid(), mine);
    EXPECT_OK(Expect(mine, segment->data(), 0x61));
    EXPECT_OK(Set(mine, segment->data(), 0x62));
    if (segment->kind() == Kind::kVmm) opened = *std::move(segment);
  }
  auto named = client_->OpenEvent("hidden");
  ASSERT_OK(named);
  EXPECT_OK(named->Wait(nullptr));
  EXPECT_OK(named->Synchronize());
  auto beside = client_->OpenEvents(opened);
  ASSERT_OK(beside);
  ASSERT_EQ(beside->size(), 1u);
  EXPECT_OK(beside->front().Synchronize());
  EXPECT_OK(client_->CreateEvent({.segment = &opened}));
}

TEST_F(GpuClient, OrdinalsAreThoseOfTheProcess) {
  if (gpus_.size() < 2) GTEST_SKIP() << "needs two GPUs";
  EXPECT_EQ(RunRole("SeesTheGpusInItsOwnOrder", {gpus_[1], gpus_[0]}), 0);
}

TEST_F(DISABLED_GpuClientRole, SeesTheGpusInItsOwnOrder) {
  ASSERT_EQ(visible_.size(), 2u);
  const std::pair<const char*, std::string> kNames[] = {
      {"", visible_[0]}, {"0", visible_[0]}, {"1", visible_[1]}, {"cuda:1", visible_[1]}};
  for (const auto& [name, uuid] : kNames) {
    for (const Kind kind : kGpuKinds) {
      SCOPED_TRACE(absl::StrCat(KindName(kind), " on ", name));
      auto segment = client_->Acquire({.bytes = kBytes, .device = name, .kind = kind});
      ASSERT_OK(segment);
      EXPECT_EQ(segment->device_uuid(), uuid);
      EXPECT_OK(Set(uuid, segment->data(), 1));
    }
  }
}

// The GPU itself writes there, and copies from there.
void UsePinned(Client& client, Segment& pinned, const std::string& gpu, uint8_t value) {
  EXPECT_TRUE(pinned.registered());
  EXPECT_OK(Set(gpu, pinned.data(), value));
  const auto* const bytes = static_cast<const uint8_t*>(pinned.data());
  EXPECT_EQ(bytes[0], value);
  EXPECT_EQ(bytes[kBytes - 1], value);
  auto target = client.Acquire({.bytes = kBytes, .device = gpu});
  ASSERT_OK(target);
  memset(pinned.data(), value + 1, kBytes);
  auto copier = DeviceCopier::ForCuda(gpu);
  ASSERT_OK(copier);
  ASSERT_OK((*copier)->CopyIn(target->data(), pinned.data(), kBytes));
  EXPECT_OK(Expect(gpu, target->data(), value + 1));
}

TEST_F(GpuClient, PinnedMemoryIsRegisteredInEveryProcess) {
  auto pinned = client_->Acquire({.bytes = kBytes, .kind = Kind::kPinned});
  ASSERT_OK(pinned);
  UsePinned(*client_, *pinned, gpus_[0], 0x71);
  EXPECT_EQ(RunRole("UsesPinnedMemory", {gpus_[0]}, {pinned->Share()->value}), 0);
  EXPECT_EQ(static_cast<const uint8_t*>(pinned->data())[kBytes - 1], 0x74);
}

TEST_F(DISABLED_GpuClientRole, UsesPinnedMemory) {
  ASSERT_EQ(tickets_.size(), 1u);
  auto pinned = client_->Open(tickets_[0]);
  ASSERT_OK(pinned);
  EXPECT_EQ(static_cast<const uint8_t*>(pinned->data())[0], 0x72);
  UsePinned(*client_, *pinned, visible_[0], 0x73);
}

#if GPUMEM_WITH_CUDA

// A stream on a device, and calls with its context.
class Stream {
 public:
  explicit Stream(const std::string& gpu)
      : driver_(*CudaDriver::Get().value()),
        context_(CudaContext::Retain(driver_, driver_.FindDevice(gpu).value()).value()) {
    EXPECT_EQ(context_->Call([&] { return driver_.cuStreamCreate(&stream_, 1); }), CUDA_SUCCESS);
  }
  ~Stream() {
    context_->Call([&] { return driver_.cuStreamDestroy_v2(stream_); });
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream get() const { return stream_; }
  void Set(void* data, uint8_t value, uint64_t bytes) {
    EXPECT_EQ(context_->Call([&] {
      return driver_.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(data), value, bytes, stream_);
    }),
              CUDA_SUCCESS);
  }
  void Synchronize() {
    EXPECT_EQ(context_->Call([&] { return driver_.cuStreamSynchronize(stream_); }), CUDA_SUCCESS);
  }

 private:
  const CudaDriver& driver_;
  const std::shared_ptr<const CudaContext> context_;
  CUstream stream_ = nullptr;
};

TEST_F(GpuClient, AnotherProcessWaitsForWhatIsStillQueued) {
  constexpr uint64_t kLarge = uint64_t{1} << 30;
  constexpr int kMemsets = 250;  // some 60 ms on an H200
  const std::string& gpu = gpus_[0];
  auto segment = client_->Acquire({.bytes = kBytes, .device = gpu, .kind = Kind::kIpc});
  ASSERT_OK(segment);
  ASSERT_OK(Set(gpu, segment->data(), 0x81));
  auto scratch = client_->Acquire({.bytes = kLarge, .device = gpu});
  ASSERT_OK(scratch);
  auto event = client_->CreateEvent({.name = "queued", .device = gpu});
  ASSERT_OK(event);
  Stream stream(gpu);
  stream.Set(scratch->data(), 0, kLarge);
  stream.Synchronize();

  Child child = Child::Self({"--gtest_also_run_disabled_tests",
                             "--gtest_filter=DISABLED_GpuClientWaiter.WaitsForAnEvent"});
  Say(child.channel(),
      absl::StrCat(daemon_->runtime_dir(), ",", gpu, ",", segment->Share()->value));
  ASSERT_EQ(Hear(child.channel()), "ready");
  for (int i = 0; i < kMemsets; ++i) {
    stream.Set(scratch->data(), static_cast<uint8_t>(i), kLarge);
  }
  stream.Set(segment->data(), 0x82, kBytes);
  ASSERT_OK(event->Record(stream.get()));
  Say(child.channel(), "recorded");
  EXPECT_EQ(child.Wait(), 0);
  stream.Synchronize();
}

TEST(DISABLED_GpuClientWaiter, WaitsForAnEvent) {
  const std::vector<std::string> given = absl::StrSplit(Hear(kParentChannel), ',');
  ASSERT_EQ(given.size(), 3u);
  auto client = Client::Connect({.runtime_dir = given[0]});
  ASSERT_OK(client);
  auto segment = (*client)->Open(given[2]);
  ASSERT_OK(segment);
  EXPECT_OK(Expect(given[1], segment->data(), 0x81));
  auto event = (*client)->OpenEvent("queued");
  ASSERT_OK(event);
  Stream stream(given[1]);
  Say(kParentChannel, "ready");
  ASSERT_EQ(Hear(kParentChannel), "recorded");
  auto done = event->Done();
  ASSERT_OK(done);
  EXPECT_FALSE(*done) << "what was queued took too short a time to show anything";
  ASSERT_OK(event->Wait(stream.get()));
  stream.Synchronize();
  EXPECT_OK(Expect(given[1], segment->data(), 0x82));
  EXPECT_TRUE(event->Done().value());
}

#endif

}  // namespace client_test
}  // namespace gpumem
