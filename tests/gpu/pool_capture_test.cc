// SPDX-License-Identifier: Apache-2.0
// The pool while a stream is being captured into a graph. The stream is refused, all others are
// served, and no call of the pool spoils the capture, in each of CUDA's modes.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/gpu/pool_on_gpu.h"

#if GPUMEM_WITH_CUDA

namespace gpumem {
namespace pool_capture_test {

using testing::Graph;
using testing::kBlock;

constexpr CUstreamCaptureMode kModes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                          CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                          CU_STREAM_CAPTURE_MODE_RELAXED};

std::string ModeName(CUstreamCaptureMode mode) {
  switch (mode) {
    case CU_STREAM_CAPTURE_MODE_GLOBAL:
      return "Global";
    case CU_STREAM_CAPTURE_MODE_THREAD_LOCAL:
      return "ThreadLocal";
    default:
      return "Relaxed";
  }
}

class PoolCapture : public testing::PoolOnGpu,
                    public ::testing::WithParamInterface<CUstreamCaptureMode> {
 protected:
  void SetUp() override {
    PoolOnGpu::SetUp();
    if (gpu_ == nullptr) return;
    captured_ = gpu_->NewStream();
    other_ = gpu_->NewStream();
    third_ = gpu_->NewStream();
    word_ = gpu_->NewWords(1);
  }

  // Ends the capture, whose work sets block and word to `value`, and checks that it does.
  void ExpectGraphWorks(Stream captured, const Block& block, uint32_t value) {
    Graph graph(*gpu_, captured);
    ASSERT_OK(graph.status());
    graph.Launch(captured);
    gpu_->SynchronizeAll();
    EXPECT_OK(gpu_->Check(block.data, value, kBlock));
    EXPECT_EQ(*word_, value);
  }

  Stream captured_ = nullptr;
  Stream other_ = nullptr;
  Stream third_ = nullptr;
  uint32_t* word_ = nullptr;  // pinned
};
INSTANTIATE_TEST_SUITE_P(Mode, PoolCapture, ::testing::ValuesIn(kModes),
                         [](const auto& tested) { return ModeName(tested.param); });

TEST_P(PoolCapture, OtherStreamsAreServedAndTheCapturedOneIsNot) {
  const auto pool = MakePool(64, {});
  ASSERT_NE(pool, nullptr);
  const auto block = pool->Allocate(kBlock, captured_);
  ASSERT_OK(block);
  Cycle(*pool, other_, 1);  // so that the third has an event of another to ask for

  gpu_->BeginCapture(captured_, GetParam());
  gpu_->Set(block->data, 7, kBlock, captured_);
  EXPECT_STATUS(pool->Allocate(512, captured_), kFailedPrecondition, "graph");
  EXPECT_STATUS(pool->Allocate(kBlock, captured_), kFailedPrecondition, "graph");
  EXPECT_STATUS(pool->Free(*block, captured_), kFailedPrecondition, "graph");
  EXPECT_STATUS(pool->StreamWaits(other_, captured_), kFailedPrecondition, "graph");
  const uint64_t growths = pool->Stats().growths;
  uint64_t large = 16 * kMiB;  // more than there is: the pool grows
  const auto serve = [&] {
    for (void* const stream : {other_, third_, other_}) {
      Cycle(*pool, stream, 2, 512);
      Cycle(*pool, stream, 3);
      Cycle(*pool, stream, 4, large);
    }
    EXPECT_OK(pool->FreeAllBlocks(third_));
    EXPECT_OK(pool->Trim(0));
  };
  serve();
  large *= 2;
  std::thread(serve).join();
  EXPECT_GE(pool->Stats().growths, growths + 2);
  gpu_->CopyWord(word_, block->data, captured_);

  ExpectGraphWorks(captured_, *block, 7);
  EXPECT_OK(pool->Free(*block, captured_));
  EXPECT_OK(pool->Allocate(kBlock, captured_));
}

TEST_P(PoolCapture, WhatTheCapturedStreamFreedBeforeIsNotToBeHadUntilItEnds) {
  const auto pool = MakePool(2, {});
  ASSERT_NE(pool, nullptr);
  const auto block = pool->Allocate(kBlock, captured_);
  ASSERT_OK(block);
  void* const freed = Cycle(*pool, captured_, 1);

  gpu_->BeginCapture(captured_, GetParam());
  gpu_->Set(block->data, 7, kBlock, captured_);
  EXPECT_STATUS(pool->Allocate(kBlock, other_), kResourceExhausted, "limit");
  std::thread([&] {
    EXPECT_STATUS(pool->Allocate(kBlock, third_), kResourceExhausted, "limit");
  }).join();
  EXPECT_STATUS(pool->ForgetStream(captured_), kFailedPrecondition, "graph");
  gpu_->CopyWord(word_, block->data, captured_);

  ExpectGraphWorks(captured_, *block, 7);
  EXPECT_EQ(Cycle(*pool, other_, 2), freed);
  EXPECT_OK(pool->Free(*block, captured_));
}

TEST_P(PoolCapture, MemoryFreedOnOtherStreamsIsUsedInstead) {
  const auto pool = MakePool(3, {.allow_opportunistic = false});
  ASSERT_NE(pool, nullptr);
  const auto block = pool->Allocate(kBlock, captured_);
  const auto of_captured = pool->Allocate(kBlock, captured_);
  const auto of_third = pool->Allocate(kBlock, third_);
  ASSERT_OK(block);
  ASSERT_OK(of_captured);
  ASSERT_OK(of_third);
  ASSERT_OK(pool->Free(*of_captured, captured_));
  ASSERT_OK(pool->Free(*of_third, third_));

  gpu_->BeginCapture(captured_, GetParam());
  gpu_->Set(block->data, 7, kBlock, captured_);
  EXPECT_EQ(Cycle(*pool, other_, 1), of_third->data);
  gpu_->CopyWord(word_, block->data, captured_);

  ExpectGraphWorks(captured_, *block, 7);
  EXPECT_OK(pool->Free(*block, captured_));
}

// Whatever is submitted to the legacy stream then, or awaits it, would spoil the capture. Memory
// alone is no work.
TEST_P(PoolCapture, TheLegacyStreamGetsMemoryWhileABlockingStreamIsCaptured) {
  const auto pool = MakePool(3, {.allow_opportunistic = false});
  ASSERT_NE(pool, nullptr);
  void* const blocking = gpu_->NewStream(CU_STREAM_DEFAULT);
  void* const sibling = gpu_->NewStream(CU_STREAM_DEFAULT);
  const auto block = pool->Allocate(kBlock, blocking);
  ASSERT_OK(block);
  const auto of_sibling = pool->Allocate(kBlock, sibling);
  ASSERT_OK(of_sibling);
  Cycle(*pool, other_, 1);
  ASSERT_OK(pool->Free(*of_sibling, sibling));
  ASSERT_EQ(pool->Stats().segments, 3u);

  gpu_->BeginCapture(blocking, GetParam());
  gpu_->Set(block->data, 7, kBlock, blocking);
  // At the limit, with the memory of two streams, each of which it would have to wait for: their
  // work is done, so it is leased anew.
  EXPECT_OK(pool->Allocate(kBlock, nullptr));
  EXPECT_EQ(pool->Stats().dependencies, 0u);
  EXPECT_OK(pool->SetLimit(4 * kBlock));
  const auto legacy = pool->Allocate(kBlock, nullptr);
  EXPECT_OK(legacy);
  if (legacy.ok()) {
    EXPECT_OK(pool->Free(*legacy, nullptr));
  }
  EXPECT_OK(pool->Allocate(512, nullptr));
  // A request for memory that the legacy stream has freed, too.
  pool->SetReusePolicy({});
  EXPECT_OK(pool->Trim(0));
  EXPECT_OK(pool->Allocate(kBlock, third_));
  gpu_->CopyWord(word_, block->data, blocking);

  ExpectGraphWorks(blocking, *block, 7);
  EXPECT_OK(pool->Free(*block, blocking));
}

TEST_P(PoolCapture, MemoryForAnyStreamIsThereWhileABlockingStreamIsCaptured) {
  const auto pool = MakePool(2, {});
  ASSERT_NE(pool, nullptr);
  void* const blocking = gpu_->NewStream(CU_STREAM_DEFAULT);
  const auto block = pool->Allocate(kBlock, blocking);
  ASSERT_OK(block);
  gpu_->BeginCapture(blocking, GetParam());
  gpu_->Set(block->data, 7, kBlock, blocking);
  EXPECT_OK(pool->AllocateSynchronized(kBlock));
  gpu_->CopyWord(word_, block->data, blocking);
  ExpectGraphWorks(blocking, *block, 7);
  EXPECT_OK(pool->Free(*block, blocking));
}

class PoolCaptureOfKind
    : public testing::PoolOnGpu,
      public ::testing::WithParamInterface<std::tuple<Kind, CUstreamCaptureMode>> {};
INSTANTIATE_TEST_SUITE_P(KindAndMode, PoolCaptureOfKind,
                         ::testing::Combine(::testing::Values(Kind::kVmm, Kind::kIpc,
                                                              Kind::kMempool),
                                            ::testing::ValuesIn(kModes)),
                         [](const auto& tested) {
                           return absl::StrCat(
                               KindName(std::get<Kind>(tested.param)), "_",
                               ModeName(std::get<CUstreamCaptureMode>(tested.param)));
                         });

TEST_P(PoolCaptureOfKind, ThePoolGrowsAndShrinks) {
  const auto [kind, mode] = GetParam();
  const auto pool = Pool::Create(client_, {.device = uuid_, .kind = kind});
  ASSERT_OK(pool);
  void* const captured = gpu_->NewStream();
  void* const other = gpu_->NewStream();
  uint32_t* const word = gpu_->NewWords(1);
  // The first segment of some kinds takes more of the driver than the others.
  Cycle(**pool, other, 1);
  ASSERT_OK((*pool)->FreeAllBlocks());

  gpu_->BeginCapture(captured, mode);
  gpu_->Set(word, 7, sizeof(*word), captured);
  Cycle(**pool, other, 2);
  EXPECT_OK((*pool)->FreeAllBlocks(other));
  EXPECT_EQ((*pool)->Stats().reserved_bytes, 0u);
  EXPECT_EQ((*pool)->Stats().growths, 2u);

  Graph graph(*gpu_, captured);
  ASSERT_OK(graph.status());
  graph.Launch(captured);
  gpu_->SynchronizeAll();
  EXPECT_EQ(*word, 7u);
}

}  // namespace pool_capture_test
}  // namespace gpumem

#endif
