// SPDX-License-Identifier: Apache-2.0
// The resources of gpumem/cccl.h on a GPU: the order of real streams, a container, a quota, errors.
#include "gpumem/cccl.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/gpu/pool_on_gpu.h"
#include "tests/support/child.h"
#include "tests/support/expect_denial.h"

#if GPUMEM_WITH_CUDA && GPUMEM_HAS_CCCL

namespace gpumem {
namespace cccl_test {

using testing::Graph;
using testing::Hold;
using testing::kBlock;
using testing::kSameStreamOnly;

constexpr size_t kAlignment = 256;

#if CCCL_VERSION >= 3001000
using DeviceRef = cuda::mr::resource_ref<cuda::mr::device_accessible>;
#else
using DeviceRef = cuda::mr::async_resource_ref<cuda::mr::device_accessible>;
#endif

// Returns CCCL's name of the stream.
cuda::stream_ref RefTo(Stream stream) {
  return cuda::stream_ref(static_cast<cudaStream_t>(stream));
}

// Uninitialized memory of a resource, as the containers of RMM and CCCL have it: freed on the
// stream that it was allocated on, through a reference that knows no type.
class Buffer {
 public:
  Buffer(DeviceRef resource, cuda::stream_ref stream, size_t bytes)
      : resource_(resource), stream_(stream), bytes_(bytes), data_(Allocate()) {}
  ~Buffer() {
    if (data_ != nullptr) Free();
  }
  Buffer(Buffer&& other) noexcept
      : resource_(other.resource_),
        stream_(other.stream_),
        bytes_(other.bytes_),
        data_(std::exchange(other.data_, nullptr)) {}
  Buffer& operator=(Buffer&&) = delete;

  void* data() const { return data_; }

 private:
#if CCCL_VERSION >= 3001000
  void* Allocate() { return resource_.allocate(stream_, bytes_, kAlignment); }
  void Free() { resource_.deallocate(stream_, data_, bytes_, kAlignment); }
#else
  void* Allocate() { return resource_.allocate_async(bytes_, kAlignment, stream_); }
  void Free() { resource_.deallocate_async(data_, bytes_, kAlignment, stream_); }
#endif

  DeviceRef resource_;
  const cuda::stream_ref stream_;
  const size_t bytes_;
  void* data_;
};

class CcclOnGpu : public testing::PoolOnGpu {
 protected:
  void SetUp() override {
    PoolOnGpu::SetUp();
    if (gpu_ == nullptr) return;
    one_ = gpu_->NewStream();
    other_ = gpu_->NewStream();
  }

  // Returns the address of memory that it allocates, writes to and frees, in the stream's order.
  void* Use(PoolResource& resource, Stream stream, uint32_t value) {
    void* const data = resource.allocate(RefTo(stream), kBlock, kAlignment);
    gpu_->Set(data, value, kBlock, stream);
    resource.deallocate(RefTo(stream), data, kBlock, kAlignment);
    return data;
  }

  Stream one_ = nullptr;
  Stream other_ = nullptr;
};

TEST_F(CcclOnGpu, TheSameStreamReusesAtOnce) {
  PoolResource resource(MakePool(1, kSameStreamOnly));
  Hold hold(*gpu_, one_);
  void* const first = Use(resource, one_, 1);
  EXPECT_EQ(Use(resource, one_, 2), first);
  EXPECT_FALSE(gpu_->IsDone(one_));
  EXPECT_THROW(Use(resource, other_, 3), PoolBadAlloc) << "the work on it is not done";
  hold.Release();
  gpu_->SynchronizeAll();
  EXPECT_OK(gpu_->Check(first, 2, kBlock));
}

TEST_F(CcclOnGpu, AnotherStreamIsMadeToWait) {
  PoolResource resource(MakePool(1, {.allow_opportunistic = false}));
  Hold hold(*gpu_, one_);
  void* const first = Use(resource, one_, 1);
  EXPECT_EQ(Use(resource, other_, 2), first);
  EXPECT_EQ(resource.pool().Stats().dependencies, 1u);
  EXPECT_FALSE(gpu_->IsDone(other_));
  hold.Release();
  gpu_->SynchronizeAll();
  EXPECT_OK(gpu_->Check(first, 2, kBlock));
}

TEST_F(CcclOnGpu, AContainerOverAReference) {
  PoolResource resource(MakePool(2, {}));
  uint32_t* const words = gpu_->NewWords(2);
  {
    Buffer source(resource, RefTo(one_), kBlock);
    Buffer moved(std::move(source));
    Buffer target(resource, RefTo(one_), kBlock);
    gpu_->Set(moved.data(), 5, kBlock, one_);
    gpu_->Set(target.data(), 6, kBlock, one_);
    gpu_->CopyWord(&words[0], moved.data(), one_);
    gpu_->CopyWord(&words[1], target.data(), one_);
  }  // freed while the work may run
  EXPECT_EQ(resource.pool().Stats().used_blocks, 0u);
  gpu_->Synchronize(one_);
  EXPECT_EQ(words[0], 5u);
  EXPECT_EQ(words[1], 6u);
}

TEST_F(CcclOnGpu, SynchronousMemoryIsForEveryStream) {
  PoolResource resource(MakePool(1, {}));
  uint32_t* const word = gpu_->NewWords(1);
  Use(resource, one_, 1);
  void* const data = resource.allocate_sync(kBlock, kAlignment);
  gpu_->Set(data, 2, kBlock, other_);
  gpu_->MakeWait(one_, other_);
  gpu_->CopyWord(word, data, one_);
  resource.deallocate_sync(data, kBlock, kAlignment);
  EXPECT_TRUE(gpu_->IsDone(one_));
  EXPECT_TRUE(gpu_->IsDone(other_));
  EXPECT_EQ(*word, 2u);
}

TEST_F(CcclOnGpu, ACapturedStreamIsRefused) {
  PoolResource resource(MakePool(4, {}));
  void* const data = resource.allocate(RefTo(one_), kBlock, kAlignment);
  gpu_->BeginCapture(one_, CU_STREAM_CAPTURE_MODE_GLOBAL);
  gpu_->Set(data, 7, kBlock, one_);
  try {
    (void)resource.allocate(RefTo(one_), kBlock, kAlignment);
    ADD_FAILURE() << "a captured stream got memory";
  } catch (const PoolBadAlloc& error) {
    EXPECT_STATUS(error.status(), kFailedPrecondition, "graph");
  }
  // Reported, and the block stays.
  ::testing::internal::CaptureStderr();
  resource.deallocate(RefTo(one_), data, kBlock, kAlignment);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("was not freed"), std::string::npos);
  // Another stream is served.
  Use(resource, other_, 1);
  {
    Graph graph(*gpu_, one_);
    ASSERT_OK(graph.status());
    graph.Launch(one_);
    gpu_->SynchronizeAll();
  }
  EXPECT_OK(gpu_->Check(data, 7, kBlock));
  resource.deallocate(RefTo(one_), data, kBlock, kAlignment);
  EXPECT_EQ(resource.pool().Stats().used_blocks, 0u);
}

TEST_F(CcclOnGpu, AboveTheQuotaItThrows) {
  auto daemon = testing::DaemonProcess::Start(
      {.backend = "cuda", .config = "[tenant_defaults]\nlimit = \"16MiB\"\n"});
  ASSERT_OK(daemon);
  auto client = (*daemon)->Connect();
  ASSERT_OK(client);
  auto pool =
      Pool::Create(*std::move(client), {.device = uuid_, .kind = Kind::kVmm, .grow_bytes = kBlock});
  ASSERT_OK(pool);
  PoolResource resource(*std::move(pool));
  try {
    (void)resource.allocate(RefTo(one_), 1024 * kMiB, kAlignment);
    ADD_FAILURE() << "it got more than its quota";
  } catch (const std::bad_alloc& error) {
    const auto* const ours = dynamic_cast<const PoolBadAlloc*>(&error);
    ASSERT_NE(ours, nullptr);
    EXPECT_DENIED(ours->status(), kDeviceLimit);
  }
  Use(resource, one_, 1);
}

TEST_F(CcclOnGpu, PinnedMemoryIsForBoth) {
  auto pool = Pool::Create(client_, {.kind = Kind::kPinned});
  ASSERT_OK(pool);
  PinnedPoolResource resource(*std::move(pool));
  auto* const words =
      static_cast<volatile uint32_t*>(resource.allocate(RefTo(one_), kBlock, kAlignment));
  words[0] = 1;
  gpu_->Set(const_cast<uint32_t*>(words), 9, kBlock, one_);
  gpu_->Synchronize(one_);
  EXPECT_EQ(words[0], 9u);
  EXPECT_EQ(words[kBlock / 4 - 1], 9u);
  resource.deallocate(RefTo(one_), const_cast<uint32_t*>(words), kBlock, kAlignment);
  // The CPU cannot use GPU memory.
  EXPECT_THROW(PinnedPoolResource(MakePool(1, {})), std::invalid_argument);
}

TEST_F(CcclOnGpu, CopiesAreEqualAndFreeForEachOther) {
  PoolResource first(MakePool(1, {}));
  PoolResource copy = first;
  EXPECT_TRUE(first == copy);
  EXPECT_TRUE(first != PoolResource(MakePool(1, {})));
  void* const data = first.allocate(RefTo(one_), kBlock, kAlignment);
  copy.deallocate(RefTo(one_), data, kBlock, kAlignment);
  EXPECT_EQ(Use(copy, one_, 1), data);
}

}  // namespace cccl_test
}  // namespace gpumem

#endif
