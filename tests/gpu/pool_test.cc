// SPDX-License-Identifier: Apache-2.0
// The pool in the order of real CUDA streams: which stream gets memory whose last work is held
// back, and in which order the work of both is done then.
#include "gpumem/pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/gpu/pool_on_gpu.h"

#if GPUMEM_WITH_CUDA

namespace gpumem {
namespace pool_test {

using testing::Hold;
using testing::kBlock;
using testing::kSameStreamOnly;
using testing::PerThreadStream;

class PoolStreams : public testing::PoolOnGpu {
 protected:
  void SetUp() override {
    PoolOnGpu::SetUp();
    if (gpu_ == nullptr) return;
    one_ = gpu_->NewStream();
    other_ = gpu_->NewStream();
  }

  // That the pool, at its limit, refuses the stream a block.
  void ExpectRefused(Pool& pool, Stream stream) {
    EXPECT_STATUS(pool.Allocate(kBlock, stream), kResourceExhausted, "limit");
  }

  // Two streams that wait for no other.
  Stream one_ = nullptr;
  Stream other_ = nullptr;
};

TEST_F(PoolStreams, TheSameStreamGetsItAtOnce) {
  const auto pool = MakePool(1, kSameStreamOnly);
  ASSERT_NE(pool, nullptr);
  Hold hold(*gpu_, one_);
  for (const uint64_t bytes : {uint64_t{512}, kMiB / 16, kMiB, kBlock}) {
    void* const first = Cycle(*pool, one_, 1, bytes);
    EXPECT_EQ(Cycle(*pool, one_, 2, bytes), first) << bytes;
  }
  EXPECT_FALSE(gpu_->IsDone(one_));
  EXPECT_EQ(pool->Stats().dependencies, 0u);
}

TEST_F(PoolStreams, AnotherStreamGetsOtherMemoryUntilTheWorkIsDone) {
  const auto pool = MakePool(2, {.allow_internal_dependencies = false});
  ASSERT_NE(pool, nullptr);
  Hold hold(*gpu_, one_);
  void* const first = Cycle(*pool, one_, 1);
  const auto second = pool->Allocate(kBlock, other_);
  ASSERT_OK(second);
  EXPECT_NE(second->data, first);
  EXPECT_EQ(pool->Stats().growths, 2u);
  gpu_->Set(second->data, 2, kBlock, other_);
  ExpectRefused(*pool, other_);
  EXPECT_FALSE(gpu_->IsDone(one_));

  hold.Release();
  gpu_->SynchronizeAll();
  EXPECT_EQ(Cycle(*pool, other_, 3), first);
  EXPECT_EQ(pool->Stats().dependencies, 0u);
  EXPECT_GE(pool->Stats().reused_after_event, 1u);
  gpu_->SynchronizeAll();
  EXPECT_OK(gpu_->Check(second->data, 2, kBlock));
  EXPECT_OK(gpu_->Check(first, 3, kBlock));
  EXPECT_OK(pool->Free(*second, other_));
}

TEST_F(PoolStreams, AtTheLimitAnotherStreamIsMadeToWait) {
  const auto pool = MakePool(1, {.allow_opportunistic = false});
  ASSERT_NE(pool, nullptr);
  Hold hold(*gpu_, one_);
  void* const first = Cycle(*pool, one_, 1);
  EXPECT_EQ(Cycle(*pool, other_, 2), first);
  EXPECT_EQ(pool->Stats().dependencies, 1u);
  EXPECT_FALSE(gpu_->IsDone(other_));
  // And back again: the first writes last.
  EXPECT_EQ(Cycle(*pool, one_, 3), first);
  EXPECT_EQ(pool->Stats().dependencies, 2u);
  hold.Release();
  gpu_->SynchronizeAll();
  EXPECT_OK(gpu_->Check(first, 3, kBlock));
}

TEST_F(PoolStreams, TheSecondStreamsWritesComeAfterTheFirsts) {
  const auto pool = MakePool(1, {});
  ASSERT_NE(pool, nullptr);
  Hold hold(*gpu_, one_);
  void* const first = Cycle(*pool, one_, 1);
  EXPECT_EQ(Cycle(*pool, other_, 2), first);
  hold.Release();
  gpu_->SynchronizeAll();
  EXPECT_OK(gpu_->Check(first, 2, kBlock));
}

TEST_F(PoolStreams, AStreamThatIsKnownToWaitGetsItAtOnce) {
  const auto pool =
      MakePool(1, {.allow_opportunistic = false, .allow_internal_dependencies = false});
  ASSERT_NE(pool, nullptr);
  Hold hold(*gpu_, one_);
  void* const first = Cycle(*pool, one_, 1);
  ExpectRefused(*pool, other_);
  gpu_->MakeWait(other_, one_);
  ExpectRefused(*pool, other_);
  ASSERT_OK(pool->StreamWaits(other_, one_));
  EXPECT_EQ(Cycle(*pool, other_, 2), first);
  // The first does not wait for memory that the other frees.
  ExpectRefused(*pool, one_);
  EXPECT_FALSE(gpu_->IsDone(other_));
  hold.Release();
  gpu_->SynchronizeAll();
  EXPECT_OK(gpu_->Check(first, 2, kBlock));
}

TEST_F(PoolStreams, TheLegacyStreamAndBlockingOnesShareInCudasOrder) {
  const auto pool = MakePool(1, kSameStreamOnly);
  ASSERT_NE(pool, nullptr);
  void* const blocking = gpu_->NewStream(CU_STREAM_DEFAULT);
  void* const another = gpu_->NewStream(CU_STREAM_DEFAULT);
  Hold hold(*gpu_, blocking);
  void* const first = Cycle(*pool, blocking, 1);
  ExpectRefused(*pool, another);  // two blocking ones do not wait for each other
  EXPECT_EQ(Cycle(*pool, nullptr, 2), first);
  EXPECT_EQ(Cycle(*pool, blocking, 3), first);
  EXPECT_EQ(Cycle(*pool, reinterpret_cast<Stream>(CU_STREAM_LEGACY), 4), first);
  EXPECT_EQ(Cycle(*pool, another, 5), first);
  EXPECT_EQ(Cycle(*pool, nullptr, 6), first);
  ExpectRefused(*pool, one_);
  pool->SetReusePolicy({.allow_internal_dependencies = false});
  ExpectRefused(*pool, one_);
  EXPECT_FALSE(gpu_->IsDone(another));
  hold.Release();
  gpu_->SynchronizeAll();
  EXPECT_OK(gpu_->Check(first, 6, kBlock));
  EXPECT_EQ(Cycle(*pool, one_, 7), first) << "the work is done now";
}

// The parameter: the thread's own stream is named by its handle, or by null.
class PoolPerThread : public PoolStreams, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Named, PoolPerThread, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "ByNull" : "ByHandle"; });

TEST_P(PoolPerThread, StreamsOfTwoThreadsAreTwo) {
  void* const name = GetParam() ? nullptr : PerThreadStream();
  const auto pool = MakePool(1, {.allow_internal_dependencies = false}, GetParam());
  ASSERT_NE(pool, nullptr);
  absl::Notification freed, looked;
  void* first = nullptr;
  std::thread holder([&] {
    Hold hold(*gpu_, PerThreadStream());
    const auto block = pool->Allocate(kBlock, name);
    EXPECT_OK(block);
    if (block.ok()) {
      first = block->data;
      gpu_->Set(first, 1, kBlock, PerThreadStream());
      EXPECT_OK(pool->Free(*block, name));
    }
    freed.Notify();
    looked.WaitForNotification();
    EXPECT_FALSE(gpu_->IsDone(PerThreadStream()));
    hold.Release();
    gpu_->Synchronize(PerThreadStream());
  });
  freed.WaitForNotification();
  ExpectRefused(*pool, name);
  std::thread([&] { ExpectRefused(*pool, name); }).join();
  looked.Notify();
  holder.join();
  gpu_->SynchronizeAll();
  const auto block = pool->Allocate(kBlock, name);
  ASSERT_OK(block);
  EXPECT_EQ(block->data, first);
  EXPECT_OK(gpu_->Check(first, 1, kBlock));
  EXPECT_OK(pool->Free(*block, name));
}

// The driver may give the new stream the old one's handle.
TEST_F(PoolStreams, AForgottenStreamsMemoryGoesToTheNext) {
  const auto pool = MakePool(1, {.allow_opportunistic = false});
  ASSERT_NE(pool, nullptr);
  void* const old = gpu_->NewStream();
  Hold hold(*gpu_, old);
  void* const first = Cycle(*pool, old, 1);
  ASSERT_OK(pool->ForgetStream(old));
  gpu_->EndStream(old);
  void* const next = gpu_->NewStream();
  EXPECT_EQ(Cycle(*pool, next, 2), first);
  EXPECT_EQ(pool->Stats().dependencies, 1u);
  EXPECT_FALSE(gpu_->IsDone(next)) << "it waits for what the old stream has still to do";
  hold.Release();
  gpu_->SynchronizeAll();
  EXPECT_OK(gpu_->Check(first, 2, kBlock));
}

TEST_F(PoolStreams, AForgottenStreamsMemoryIsForAnyStreamOnceItsWorkIsDone) {
  const auto pool = MakePool(1, {.allow_internal_dependencies = false});
  ASSERT_NE(pool, nullptr);
  void* const old = gpu_->NewStream();
  void* first = nullptr;
  {
    Hold hold(*gpu_, old);
    first = Cycle(*pool, old, 1);
    ASSERT_OK(pool->ForgetStream(old));
    gpu_->EndStream(old);
    ExpectRefused(*pool, other_);
  }
  gpu_->SynchronizeAll();
  EXPECT_EQ(Cycle(*pool, other_, 2), first);
}

TEST_F(PoolStreams, ABlockThatSpansSegmentsIsOneRange) {
  constexpr uint64_t kBoth = 2 * kBlock;
  const auto pool = MakePool(2, kSameStreamOnly);
  ASSERT_NE(pool, nullptr);
  const auto first = pool->Allocate(kBlock, one_);
  const auto second = pool->Allocate(kBlock, one_);
  ASSERT_OK(first);
  ASSERT_OK(second);
  ASSERT_OK(pool->Free(*first, one_));
  ASSERT_OK(pool->Free(*second, one_));
  const auto both = pool->Allocate(kBoth, one_);
  ASSERT_OK(both);
  EXPECT_EQ(pool->Stats().segments, 2u);
  gpu_->Set(both->data, 9, kBoth, one_);
  gpu_->SynchronizeAll();
  EXPECT_OK(gpu_->Check(both->data, 9, kBoth));
  EXPECT_OK(pool->Free(*both, one_));
}

TEST_F(PoolStreams, FreeSynchronizedWaitsForAllStreams) {
  constexpr uint64_t kLarge = 256 * kMiB;
  constexpr int kMemsets = 400;  // some 25 ms on an H200
  const auto pool = MakePool(1, kSameStreamOnly);
  ASSERT_NE(pool, nullptr);
  const auto block = pool->Allocate(kBlock, one_);
  ASSERT_OK(block);
  void* const large = gpu_->NewMemory(kLarge);
  for (int i = 0; i < kMemsets; ++i) {
    gpu_->Set(large, 1, kLarge, i % 2 == 0 ? one_ : other_);
  }
  EXPECT_FALSE(gpu_->IsDone(one_)) << "what was queued took too short a time to show anything";
  EXPECT_FALSE(gpu_->IsDone(other_)) << "what was queued took too short a time to show anything";
  ASSERT_OK(pool->FreeSynchronized(block->data));
  EXPECT_TRUE(gpu_->IsDone(one_));
  EXPECT_TRUE(gpu_->IsDone(other_));
  EXPECT_EQ(Cycle(*pool, other_, 2), block->data) << "it is anybody's now";
}

TEST_F(PoolStreams, AllocateSynchronizedWaitsForWhatUsedTheMemory) {
  constexpr uint64_t kLarge = 256 * kMiB;
  const auto pool = MakePool(1, {});
  ASSERT_NE(pool, nullptr);
  const auto block = pool->Allocate(kBlock, nullptr);
  ASSERT_OK(block);
  void* const large = gpu_->NewMemory(kLarge);
  for (int i = 0; i < 400; ++i) gpu_->Set(large, 1, kLarge, nullptr);  // some 25 ms on an H200
  gpu_->Set(block->data, 1, kBlock, nullptr);
  ASSERT_OK(pool->Free(*block, nullptr));
  EXPECT_FALSE(gpu_->IsDone(nullptr)) << "what was queued took too short a time to show anything";
  const auto again = pool->AllocateSynchronized(kBlock);
  ASSERT_OK(again);
  EXPECT_EQ(again->data, block->data);
  EXPECT_TRUE(gpu_->IsDone(nullptr));
  EXPECT_OK(pool->FreeSynchronized(again->data));
}

}  // namespace pool_test
}  // namespace gpumem

#endif
