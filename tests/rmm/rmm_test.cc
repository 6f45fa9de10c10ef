// SPDX-License-Identifier: Apache-2.0
// RMM over gpumem::PoolResource: its references, adaptors and containers. rmm_test.sh builds it
// with an RMM of the user's and runs it with a gpumemd. Tests of containers need a GPU, and skip
// without.
#include <cuda_runtime_api.h>
#include <gpumem/cccl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <rmm/cuda_stream.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/device_scalar.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/aligned_resource_adaptor.hpp>
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/mr/thread_safe_resource_adaptor.hpp>
#include <rmm/mr/tracking_resource_adaptor.hpp>
#include <rmm/resource_ref.hpp>
#include <rmm/version_config.hpp>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kAlignment = 256;  // the least that RMM promises
constexpr size_t kLimit = 256 * kMiB;

using DeviceResource = cuda::mr::any_resource<cuda::mr::device_accessible>;
using DeviceRef = rmm::device_async_resource_ref;
using gpumem::PoolBadAlloc;
using gpumem::PoolResource;

static_assert(cuda::mr::resource_with<PoolResource, cuda::mr::device_accessible>);
static_assert(std::is_constructible_v<DeviceRef, PoolResource&>);
static_assert(std::is_constructible_v<DeviceResource, PoolResource>);
static_assert(
    std::is_constructible_v<rmm::host_device_async_resource_ref, gpumem::PinnedPoolResource&>);
static_assert(!std::is_constructible_v<rmm::host_async_resource_ref, PoolResource&>);

// True if RMM can use a GPU here.
bool HasGpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// Returns a pool of at most kLimit bytes of the daemon's first device.
std::shared_ptr<gpumem::Pool> MakePool() {
  auto client = gpumem::Client::Connect();
  if (!client.ok()) throw std::runtime_error(client.status().ToString());
  auto pool = gpumem::Pool::Create(*std::move(client), {.limit_bytes = kLimit});
  if (!pool.ok()) throw std::runtime_error(pool.status().ToString());
  return *std::move(pool);
}

// Returns how many blocks of its pool are in use.
uint64_t UsedBlocks(const PoolResource& resource) { return resource.pool().Stats().used_blocks; }

// Allocates and frees at random, up to 20 blocks at a time.
void AllocateAtRandom(DeviceRef resource, cuda::stream_ref stream, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<size_t> size(1, 2 * kMiB);
  std::vector<std::pair<void*, size_t>> blocks;
  for (int i = 0; i < 500; ++i) {
    if (blocks.size() < 20 && (blocks.empty() || random() % 2 == 0)) {
      const size_t bytes = size(random);
      void* const data = resource.allocate(stream, bytes, kAlignment);
      ASSERT_NE(data, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % kAlignment, 0u);
      blocks.emplace_back(data, bytes);
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      resource.deallocate(stream, blocks.back().first, blocks.back().second, kAlignment);
      blocks.pop_back();
    }
  }
  for (const auto& [data, bytes] : blocks) resource.deallocate(stream, data, bytes, kAlignment);
}

class Rmm : public ::testing::Test {
 protected:
  PoolResource resource_{MakePool()};
  const cuda::stream_ref stream_{cudaStream_t{nullptr}};
};

TEST_F(Rmm, ReferencesAreEqualIfTheirPoolsAre) {
  PoolResource copy = resource_;
  PoolResource other(MakePool());
  EXPECT_TRUE(DeviceRef(resource_) == DeviceRef(copy));
  EXPECT_FALSE(DeviceRef(resource_) == DeviceRef(other));
  EXPECT_TRUE(DeviceResource(resource_) == DeviceResource(copy));
}

TEST_F(Rmm, AnOwningResourceKeepsThePool) {
  std::shared_ptr<gpumem::Pool> pool = MakePool();
  const std::weak_ptr<gpumem::Pool> watched = pool;
  {
    DeviceResource owning{PoolResource(std::move(pool))};
    ASSERT_FALSE(watched.expired());
    void* const data = owning.allocate(stream_, kMiB, kAlignment);
    DeviceResource copy = owning;
    copy.deallocate(stream_, data, kMiB, kAlignment);
  }
  EXPECT_TRUE(watched.expired());
}

TEST_F(Rmm, ZeroBytes) {
  DeviceRef ref(resource_);
  void* data = ref.allocate(stream_, 0, kAlignment);
  ref.deallocate(stream_, data, 0, kAlignment);
  data = ref.allocate_sync(0, kAlignment);
  ref.deallocate_sync(data, 0, kAlignment);
  EXPECT_EQ(UsedBlocks(resource_), 0u);
}

TEST_F(Rmm, RandomAllocations) {
  AllocateAtRandom(resource_, stream_, 1);
  EXPECT_EQ(UsedBlocks(resource_), 0u);
}

TEST_F(Rmm, RandomAllocationsOfThreads) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] { AllocateAtRandom(resource_, stream_, i); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(UsedBlocks(resource_), 0u);
}

TEST_F(Rmm, Statistics) {
  rmm::mr::statistics_resource_adaptor statistics(resource_);
  void* const data = statistics.allocate(stream_, 3 * kMiB, kAlignment);
  EXPECT_EQ(statistics.get_bytes_counter().value, static_cast<int64_t>(3 * kMiB));
  EXPECT_EQ(UsedBlocks(resource_), 1u);
  statistics.deallocate(stream_, data, 3 * kMiB, kAlignment);
  EXPECT_EQ(statistics.get_bytes_counter().value, 0);
  EXPECT_EQ(statistics.get_bytes_counter().peak, static_cast<int64_t>(3 * kMiB));
  EXPECT_EQ(statistics.get_allocations_counter().total, 1);
  EXPECT_TRUE(statistics.get_upstream_resource() == DeviceRef(resource_));
}

TEST_F(Rmm, Limiting) {
  rmm::mr::limiting_resource_adaptor limiting(resource_, 4 * kMiB);
  void* const data = limiting.allocate(stream_, 3 * kMiB, kAlignment);
  EXPECT_THROW((void)limiting.allocate(stream_, 2 * kMiB, kAlignment), rmm::out_of_memory);
  EXPECT_EQ(limiting.get_allocated_bytes(), 3 * kMiB);
  limiting.deallocate(stream_, data, 3 * kMiB, kAlignment);
  EXPECT_EQ(limiting.get_allocated_bytes(), 0u);
  EXPECT_EQ(UsedBlocks(resource_), 0u);
}

TEST_F(Rmm, TrackingAndThreadSafe) {
  rmm::mr::tracking_resource_adaptor tracking(resource_);
  rmm::mr::thread_safe_resource_adaptor safe(tracking);
  void* const data = safe.allocate(stream_, kMiB, kAlignment);
  EXPECT_EQ(tracking.get_outstanding_allocations().count(data), 1u);
  safe.deallocate(stream_, data, kMiB, kAlignment);
  EXPECT_EQ(tracking.get_allocated_bytes(), 0u);
}

TEST_F(Rmm, LargerAlignmentsByAnAdaptor) {
  EXPECT_THROW((void)resource_.allocate(stream_, kMiB, 4096), PoolBadAlloc);
  rmm::mr::aligned_resource_adaptor aligned(resource_, 4096);
  void* const data = aligned.allocate(stream_, kMiB, 4096);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0u);
  aligned.deallocate(stream_, data, kMiB, 4096);
  EXPECT_EQ(UsedBlocks(resource_), 0u);
}

TEST_F(Rmm, AFailureIsBadAllocAndItsCallbackMayRetry) {
  EXPECT_THROW((void)resource_.allocate(stream_, 2 * kLimit, kAlignment), std::bad_alloc);
  int calls = 0;
  const auto raise = [&](size_t) {
    ++calls;
    return resource_.pool().SetLimit(4 * kLimit).ok();
  };
  rmm::mr::failure_callback_resource_adaptor<PoolBadAlloc> adaptor(
      resource_, [&](size_t bytes, void*) { return raise(bytes); }, nullptr);
  void* const data = adaptor.allocate(stream_, kLimit + kMiB, kAlignment);
  EXPECT_EQ(calls, 1);
  adaptor.deallocate(stream_, data, kLimit + kMiB, kAlignment);
}

TEST_F(Rmm, ADevicesResource) {
  const rmm::cuda_device_id device{0};
  DeviceResource old = rmm::mr::set_per_device_resource(device, resource_);
  EXPECT_TRUE(rmm::mr::get_per_device_resource_ref(device) == DeviceRef(resource_));
  rmm::mr::set_per_device_resource(device, std::move(old));
  EXPECT_FALSE(rmm::mr::get_per_device_resource_ref(device) == DeviceRef(resource_));
}

class RmmOnGpu : public Rmm {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU";
    if (resource_.pool().backend() != gpumem::Backend::kCuda) GTEST_SKIP() << "a host backend";
  }

  static std::vector<int> Numbers(size_t count) {
    std::vector<int> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }

  // Returns the buffer's contents, in the stream's order.
  static std::vector<int> Read(const rmm::device_buffer& buffer, cuda::stream_ref stream) {
    std::vector<int> read(buffer.size() / sizeof(int));
    EXPECT_EQ(
        cudaMemcpyAsync(read.data(), buffer.data(), buffer.size(), cudaMemcpyDefault, stream.get()),
        cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    return read;
  }
};

TEST_F(RmmOnGpu, Buffers) {
  const std::vector<int> numbers = Numbers(kMiB);
  const size_t bytes = numbers.size() * sizeof(int);
  rmm::cuda_stream stream;
  {
    rmm::device_buffer buffer(numbers.data(), bytes, cuda::stream_ref(stream), resource_);
    EXPECT_TRUE(resource_.pool().Find(buffer.data()).ok());
    EXPECT_EQ(Read(buffer, stream), numbers);
    rmm::device_buffer copy(buffer, cuda::stream_ref(stream), resource_);
    EXPECT_NE(copy.data(), buffer.data());
    EXPECT_EQ(Read(copy, stream), numbers);
    buffer.resize(2 * bytes, stream);
    buffer.resize(bytes, stream);
    buffer.shrink_to_fit(stream);
    EXPECT_EQ(Read(buffer, stream), numbers);
    rmm::device_buffer moved = std::move(buffer);
    EXPECT_EQ(Read(moved, stream), numbers);
  }
  EXPECT_EQ(UsedBlocks(resource_), 0u);
  EXPECT_TRUE(resource_.pool().ForgetStream(stream.value()).ok());
}

TEST_F(RmmOnGpu, VectorsAndScalarsOfTheCurrentDevice) {
  DeviceResource old = rmm::mr::set_current_device_resource(resource_);
  {
    rmm::device_uvector<int> vector(1000, stream_);
    const int initial = 42;
    rmm::device_scalar<int> scalar(initial, stream_);
    EXPECT_EQ(UsedBlocks(resource_), 2u);
    vector.set_element(7, 49, stream_);
    EXPECT_EQ(vector.element(7, stream_), 49);
    EXPECT_EQ(scalar.value(stream_), 42);
  }
  EXPECT_EQ(UsedBlocks(resource_), 0u);
  rmm::mr::set_current_device_resource(std::move(old));
}

// Each buffer is freed while its work runs, and the other stream writes to the same memory next.
TEST_F(RmmOnGpu, TwoStreamsTakeTurnsOnTheSameMemory) {
  constexpr size_t kBytes = kLimit * 3 / 4;  // only one fits
  rmm::cuda_stream streams[2];
  for (int i = 0; i < 8; ++i) {
    const cuda::stream_ref stream(streams[i % 2]);
    rmm::device_buffer buffer(kBytes, stream, resource_);
    ASSERT_EQ(cudaMemsetAsync(buffer.data(), i, kBytes, stream.get()), cudaSuccess);
    std::vector<uint8_t> end(1);
    ASSERT_EQ(cudaMemcpyAsync(end.data(), static_cast<uint8_t*>(buffer.data()) + kBytes - 1, 1,
                              cudaMemcpyDefault, stream.get()),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    EXPECT_EQ(end[0], i);
    ASSERT_EQ(cudaMemsetAsync(buffer.data(), 99, kBytes, stream.get()), cudaSuccess);
  }
  for (rmm::cuda_stream& stream : streams) {
    EXPECT_TRUE(resource_.pool().ForgetStream(stream.value()).ok());
  }
}

TEST_F(RmmOnGpu, SynchronousMemory) {
  DeviceRef ref(resource_);
  void* const data = ref.allocate_sync(kMiB, kAlignment);
  EXPECT_EQ(cudaMemset(data, 1, kMiB), cudaSuccess);
  ref.deallocate_sync(data, kMiB, kAlignment);
  EXPECT_EQ(UsedBlocks(resource_), 0u);
}

TEST_F(RmmOnGpu, RmmsPoolOnTop) {
  rmm::mr::pool_memory_resource pool(resource_, 16 * kMiB, 64 * kMiB);
  AllocateAtRandom(pool, stream_, 3);
  EXPECT_GE(resource_.pool().Stats().used_bytes, 16 * kMiB);
}

TEST_F(RmmOnGpu, ABufferAboveTheLimitThrows) {
  EXPECT_THROW(rmm::device_buffer(2 * kLimit, stream_, resource_), std::bad_alloc);
  rmm::device_buffer buffer(kMiB, stream_, resource_);
  EXPECT_EQ(cudaMemset(buffer.data(), 1, kMiB), cudaSuccess);
}

TEST_F(RmmOnGpu, StreamsOfThreads) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      rmm::cuda_stream stream;
      AllocateAtRandom(resource_, stream, i);
      EXPECT_EQ(cudaStreamSynchronize(stream.value()), cudaSuccess);
      EXPECT_TRUE(resource_.pool().ForgetStream(stream.value()).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(UsedBlocks(resource_), 0u);
}

}  // namespace

// The last resource stays set, as in programs that never reset it: RMM ends it while the process
// exits.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::printf("RMM %d.%02d.%02d, CCCL %d\n", RMM_VERSION_MAJOR, RMM_VERSION_MINOR,
              RMM_VERSION_PATCH, CCCL_VERSION);
  const int status = RUN_ALL_TESTS();
  rmm::mr::set_per_device_resource(rmm::cuda_device_id{0}, PoolResource(MakePool()));
  return status;
}
