// SPDX-License-Identifier: Apache-2.0
// Demoted memory on a GPU: a linked list of absolute pointers, walked by a kernel and by a graph
// that was captured before, on the device, in host memory and on the device again.
#include "gpumem/demote.h"

#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/bytes.h"
#include "common/cuda/context.h"
#include "common/cuda/device_copy.h"
#include "gpumem/client.h"
#include "tests/gpu/gpu_work.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/pattern.h"

namespace gpumem {
namespace demote_test {

using testing::DaemonProcess;
using testing::GpuWork;
using testing::Graph;

// One thread that adds up the values of a list: each node is the address of the next one, and a
// value.
constexpr char kWalk[] = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry walk(.param .u64 first, .param .u64 result) {
  .reg .u64 %node;
  .reg .u64 %to;
  .reg .u32 %value;
  .reg .u32 %sum;
  .reg .pred %more;
  ld.param.u64 %node, [first];
  ld.param.u64 %to, [result];
  mov.u32 %sum, 0;
next:
  ld.global.u32 %value, [%node+8];
  add.u32 %sum, %sum, %value;
  ld.global.u64 %node, [%node];
  setp.ne.u64 %more, %node, 0;
  @%more bra next;
  st.global.u32 [%to], %sum;
  ret;
}
)";

struct Node {
  uint64_t next = 0;
  uint32_t value = 0;
  uint32_t unused = 0;
};

constexpr uint64_t kBytes = 8 * kMiB;
constexpr int kSegments = 8;
constexpr uint64_t kStride = 64 * kKiB;  // between the nodes of a segment
constexpr uint64_t kNodes = kBytes / kStride;

class DemoteOnGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto driver = CudaDriver::Get();
    if (!driver.ok()) GTEST_SKIP() << driver.status();
    driver_ = *driver;
    uuid_ = driver_->devices().front().uuid;
    auto daemon = DaemonProcess::Start({.backend = "cuda"});
    if (!daemon.ok()) GTEST_SKIP() << daemon.status();
    daemon_ = *std::move(daemon);
    auto client = daemon_->Connect();
    ASSERT_OK(client);
    client_ = *std::move(client);
    auto segments =
        client_->AcquireMany({.bytes = kBytes, .device = uuid_, .kind = Kind::kVmm}, kSegments);
    ASSERT_OK(segments);
    segments_ = *std::move(segments);
    for (Segment& segment : segments_) all_.push_back(&segment);
    auto context = CudaContext::Retain(*driver_, driver_->FindDevice(uuid_).value());
    ASSERT_OK(context);
    context_ = *std::move(context);
    gpu_ = std::make_unique<GpuWork>(uuid_);
    stream_ = gpu_->NewStream();
    result_ = gpu_->NewWords(1);
    ASSERT_OK(context_->Run("loading the kernel", [this] {
      const CUresult result = driver_->cuModuleLoadData(&module_, kWalk);
      return result == CUDA_SUCCESS ? driver_->cuModuleGetFunction(&walk_, module_, "walk")
                                    : result;
    }));
    WriteList();
  }
  void TearDown() override {
    if (module_ == nullptr) return;
    gpu_->SynchronizeAll();
    EXPECT_OK(context_->Run("unloading", [this] { return driver_->cuModuleUnload(module_); }));
  }

  static uint64_t AddressOf(const Segment& segment, uint64_t node) {
    return reinterpret_cast<uint64_t>(segment.data()) + node * kStride;
  }
  // Node k of each segment is followed by node k of the next segment, then by node k + 1.
  void WriteList() {
    auto copier = DeviceCopier::ForCuda(uuid_);
    ASSERT_OK(copier);
    for (int s = 0; s < kSegments; ++s) {
      std::vector<uint8_t> bytes(kBytes);
      for (uint64_t k = 0; k < kNodes; ++k) {
        const bool last = s == kSegments - 1;
        auto* const node = reinterpret_cast<Node*>(&bytes[k * kStride]);
        node->value = static_cast<uint32_t>(k * kSegments + static_cast<uint64_t>(s) + 1);
        if (!last) node->next = AddressOf(segments_[static_cast<size_t>(s) + 1], k);
        if (last && k + 1 < kNodes) node->next = AddressOf(segments_[0], k + 1);
        sum_ += node->value;
      }
      ASSERT_OK((*copier)->CopyIn(segments_[static_cast<size_t>(s)].data(), bytes.data(), kBytes));
    }
  }
  // Makes the sum another one, so that no two walks have the same result.
  void ChangeFirstNode() {
    auto copier = DeviceCopier::ForCuda(uuid_);
    ASSERT_OK(copier);
    Node node;
    ASSERT_OK((*copier)->CopyOut(&node, segments_[0].data(), sizeof(node)));
    node.value += 7;
    sum_ += 7;
    ASSERT_OK((*copier)->CopyIn(segments_[0].data(), &node, sizeof(node)));
  }
  void LaunchWalk() {
    uint64_t first = AddressOf(segments_[0], 0);
    void* to = result_;
    void* arguments[] = {&first, &to};
    EXPECT_OK(context_->Run("launching", [&] {
      return driver_->cuLaunchKernel(walk_, 1, 1, 1, 1, 1, 1, 0, static_cast<CUstream>(stream_),
                                     arguments, nullptr);
    }));
  }
  void ExpectSum() {
    gpu_->Synchronize(stream_);
    EXPECT_EQ(*result_, sum_);
    *result_ = 0;
  }
  uint64_t Charged(bool host) {
    uint64_t bytes = 0;
    const auto usage = client_->GetUsage();
    EXPECT_OK(usage);
    if (!usage.ok()) return 0;
    for (const DeviceUsage& device : usage->devices) {
      if (device.device_uuid.starts_with("PINNED-") != host) continue;
      bytes += device.charged_bytes - device.retained_bytes;
    }
    return bytes;
  }

  const CudaDriver* driver_ = nullptr;
  std::string uuid_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  std::shared_ptr<const CudaContext> context_;
  std::vector<Segment> segments_;
  std::vector<Segment*> all_;
  std::unique_ptr<GpuWork> gpu_;
  Stream stream_ = nullptr;
  uint32_t* result_ = nullptr;  // pinned
  CUmodule module_ = nullptr;
  CUfunction walk_ = nullptr;
  uint32_t sum_ = 0;
};

TEST_F(DemoteOnGpuTest, PointersAndGraphsStayValidBothWays) {
  gpu_->BeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  LaunchWalk();
  Graph graph(*gpu_, stream_);
  ASSERT_OK(graph.status());
  graph.Launch(stream_);
  ExpectSum();
  const void* const address = segments_[3].data();
  for (int round = 0; round < 3; ++round) {
    for (const bool demotes : {true, false}) {
      ASSERT_NO_FATAL_FAILURE(ChangeFirstNode());
      ASSERT_OK(demotes ? client_->Demote(all_) : client_->Promote(all_));
      EXPECT_EQ(segments_[3].demoted(), demotes);
      EXPECT_EQ(segments_[3].data(), address);
      EXPECT_EQ(segments_[3].backend(), Backend::kCuda);
      EXPECT_EQ(Charged(/*host=*/true), demotes ? kSegments * kBytes : 0);
      EXPECT_EQ(Charged(/*host=*/false), demotes ? 0 : kSegments * kBytes);
      graph.Launch(stream_);
      ExpectSum();
      ASSERT_NO_FATAL_FAILURE(ChangeFirstNode());  // in its present memory, too
      LaunchWalk();
      ExpectSum();
    }
  }
}

TEST_F(DemoteOnGpuTest, SomeSegmentsOfAListAreInHostMemory) {
  Segment* const some[] = {&segments_[1], &segments_[2], &segments_[6]};
  ASSERT_OK(client_->Demote(some));
  LaunchWalk();
  ExpectSum();
  EXPECT_EQ(client_->Suspend(some).code(), absl::StatusCode::kUnimplemented);
  ASSERT_OK(client_->Promote(some));
  LaunchWalk();
  ExpectSum();
}

TEST_F(DemoteOnGpuTest, ASegmentIsOpenedWhileItIsDemoted) {
  ASSERT_OK(testing::Fill(testing::MemoryOf(segments_[0]), 5));
  const auto ticket = segments_[0].Share();
  ASSERT_OK(ticket);
  Segment* const some[] = {&segments_[0]};
  ASSERT_OK(client_->Demote(some));
  auto opened = client_->Open(ticket->value, {.read_only = true});
  ASSERT_OK(opened);
  EXPECT_EQ(opened->kind(), Kind::kHost);
  EXPECT_OK(testing::Check(testing::MemoryOf(*opened), 5));
  EXPECT_OK(testing::Check(testing::MemoryOf(segments_[0]), 5));
  EXPECT_EQ(client_->Promote(some).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_OK(opened->Release());
  EXPECT_OK(client_->Promote(some));
  EXPECT_OK(testing::Check(testing::MemoryOf(segments_[0]), 5));
}

TEST_F(DemoteOnGpuTest, KernelsGoOnBetweenTheSwitches) {
  // A mere mutex would be unfair: the reader would take it again before the pause gets it.
  absl::Mutex mutex;
  bool held = false, reading = false;
  const auto may_read = [&] { return !held; };
  const auto is_quiet = [&] { return !reading; };
  std::atomic<bool> ends = false;
  std::atomic<int> walks = 0, wrong = 0;
  std::thread reader([&] {
    while (!ends) {
      {
        absl::MutexLock lock(&mutex);
        mutex.Await(absl::Condition(&may_read));
        reading = true;
      }
      *result_ = 0;
      LaunchWalk();
      gpu_->Synchronize(stream_);
      wrong += *result_ != sum_ ? 1 : 0;
      ++walks;
      absl::MutexLock lock(&mutex);
      reading = false;
    }
  });
  const DemoteOptions options = {.pause =
                                     [&] {
                                       absl::MutexLock lock(&mutex);
                                       held = true;
                                       mutex.Await(absl::Condition(&is_quiet));
                                       return absl::OkStatus();
                                     },
                                 .proceed =
                                     [&] {
                                       absl::MutexLock lock(&mutex);
                                       held = false;
                                     }};
  for (int round = 0; round < 5; ++round) {
    EXPECT_OK(client_->Demote(all_, options));
    EXPECT_OK(client_->Promote(all_, options));
  }
  ends = true;
  reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(walks, 0);
}

TEST_F(DemoteOnGpuTest, AProgramThatCannotPauseKeepsItsDeviceMemory) {
  int pauses = 0;
  const DemoteOptions options = {
      .pause = [&] { return ++pauses == 4 ? absl::AbortedError("busy") : absl::OkStatus(); },
      .proceed = [] {},
      .longest_pause = absl::Nanoseconds(1)};
  EXPECT_EQ(client_->Demote(all_, options), absl::AbortedError("busy"));
  EXPECT_EQ(pauses, 4 + 3);
  EXPECT_FALSE(segments_[0].demoted());
  LaunchWalk();
  ExpectSum();
  EXPECT_EQ(Charged(/*host=*/true), 0u);
}

}  // namespace demote_test
}  // namespace gpumem

#endif
