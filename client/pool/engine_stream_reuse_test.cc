// SPDX-License-Identifier: Apache-2.0
// Which stream gets the memory that another one freed, and when: by examples on a simulated GPU.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/pool/engine.h"
#include "client/pool/testing/fake_gpu.h"
#include "client/pool/testing/fake_segments.h"
#include "common/bytes.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace engine_stream_reuse_test {

Stream Named(uintptr_t name) { return reinterpret_cast<Stream>(name); }

class StreamsTest : public ::testing::Test {
 protected:
  void Make(const PoolOptions& options, uint64_t capacity) {
    auto source = std::make_unique<FakeSegments>(FakeSegments::Options{.capacity = capacity});
    engine_ =
        std::make_unique<Engine>(std::move(source), std::make_unique<FakeStreams>(&gpu_), options);
  }
  // No stream gets memory of another one by the policy. The pool grows by one block.
  static PoolOptions NoReuse() {
    return {.reuse = {.follow_event_dependencies = false,
                      .allow_opportunistic = false,
                      .allow_internal_dependencies = false},
            .grow_bytes = 2 * kMiB};
  }
  // One block of 2 MiB, used and freed on the stream.
  void* Cycle(Stream stream) {
    const Block block = engine_->Allocate(2 * kMiB, stream).value();
    gpu_.Use(block, stream);
    EXPECT_TRUE(engine_->Free(block.data, stream).ok());
    return block.data;
  }

  FakeGpu gpu_{1};
  std::unique_ptr<Engine> engine_;
  Stream one_ = Named(48), other_ = Named(64);  // made non-blocking
  StreamsTest() {
    gpu_.MakeNonBlocking(one_);
    gpu_.MakeNonBlocking(other_);
  }
};

TEST_F(StreamsTest, TheSameStreamGetsItAtOnce) {
  Make({.grow_bytes = 2 * kMiB, .thread_caches = false}, 8 * kMiB);
  EXPECT_EQ(Cycle(one_), Cycle(one_));
  EXPECT_EQ(gpu_.events(), 0u) << "an event was recorded that nobody needed";
}

TEST_F(StreamsTest, AnotherStreamGetsOtherMemoryWhileThePoolCanGrow) {
  Make({.grow_bytes = 2 * kMiB}, 8 * kMiB);
  void* const first = Cycle(one_);
  EXPECT_NE(engine_->Allocate(2 * kMiB, other_)->data, first);
  EXPECT_EQ(gpu_.waits(), 0u);
}

TEST_F(StreamsTest, AnotherStreamGetsItWhenItsWorkIsDone) {
  Make({.reuse = {.allow_internal_dependencies = false}, .grow_bytes = 2 * kMiB}, 2 * kMiB);
  void* const first = Cycle(one_);
  EXPECT_EQ(engine_->Allocate(2 * kMiB, other_).status().code(),
            absl::StatusCode::kResourceExhausted);
  gpu_.Finish();
  EXPECT_EQ(engine_->Allocate(2 * kMiB, other_)->data, first);
  EXPECT_EQ(gpu_.waits(), 0u);
}

TEST_F(StreamsTest, AnotherStreamWaitsForItWhereThePoolCannotGrow) {
  Make({.reuse = {.allow_opportunistic = false}, .grow_bytes = 2 * kMiB}, 2 * kMiB);
  void* const first = Cycle(one_);
  EXPECT_EQ(engine_->Allocate(2 * kMiB, other_)->data, first);
  EXPECT_EQ(gpu_.waits(), 1u);
  EXPECT_EQ(engine_->Stats().dependencies, 1u);
}

TEST_F(StreamsTest, AStreamThatIsKnownToWaitGetsItAtOnce) {
  Make({.reuse = {.allow_opportunistic = false, .allow_internal_dependencies = false},
        .grow_bytes = 2 * kMiB,
        .thread_caches = false},
       2 * kMiB);
  void* const first = Cycle(one_);
  EXPECT_FALSE(engine_->Allocate(2 * kMiB, other_).ok());
  gpu_.UserWait(other_, one_);
  ASSERT_TRUE(engine_->StreamWaits(other_, one_).ok());
  EXPECT_EQ(engine_->Allocate(2 * kMiB, other_)->data, first);
  // It does not know of later frees.
  ASSERT_TRUE(engine_->Free(first, other_).ok());
  EXPECT_FALSE(engine_->Allocate(2 * kMiB, one_).ok());
}

TEST_F(StreamsTest, TheLegacyStreamAndBlockingOnesShareWhateverThePolicy) {
  void* const blocking = Named(16);
  Make(NoReuse(), 2 * kMiB);
  void* const first = Cycle(blocking);
  EXPECT_EQ(Cycle(nullptr), first);
  EXPECT_EQ(Cycle(blocking), first);
  EXPECT_FALSE(engine_->Allocate(2 * kMiB, one_).ok()) << "it waits for nobody";
}

// A new stream may have its handle: no order with that stream is known.
TEST_F(StreamsTest, TheLegacyStreamSharesNothingWithAForgottenStream) {
  void* const blocking = Named(16);
  Make(NoReuse(), 2 * kMiB);
  Cycle(blocking);
  ASSERT_TRUE(engine_->ForgetStream(blocking).ok());
  EXPECT_FALSE(engine_->Allocate(2 * kMiB, nullptr).ok());
  gpu_.Finish();
  EXPECT_TRUE(engine_->Allocate(2 * kMiB, nullptr).ok()) << "its work is done";
}

TEST_F(StreamsTest, AStreamThatIsForgottenWhileItAllocatesSharesNothing) {
  void* const blocking = Named(16);
  Make(NoReuse(), 2 * kMiB);
  const Block held = engine_->Allocate(2 * kMiB, nullptr).value();
  gpu_.Use(held, nullptr);
  int asked = 0;
  engine_->SetOutOfMemoryCallback([&](uint64_t) {
    if (++asked > 1) return false;
    EXPECT_TRUE(engine_->ForgetStream(blocking).ok());
    EXPECT_TRUE(engine_->Free(held.data, nullptr).ok());
    return true;
  });
  EXPECT_FALSE(engine_->Allocate(2 * kMiB, blocking).ok());
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(gpu_.waits(), 0u);
  gpu_.Finish();
  EXPECT_TRUE(engine_->Allocate(2 * kMiB, blocking).ok());
}

TEST_F(StreamsTest, ACapturedStreamMayNotAllocateOrFree) {
  Make({}, 64 * kMiB);
  const Block before = engine_->Allocate(512, one_).value();
  gpu_.SetCapturing(one_, true);
  const auto refused = engine_->Allocate(512, one_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine_->Free(before.data, one_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(engine_->Allocate(512, other_).ok());
  gpu_.SetCapturing(one_, false);
  EXPECT_TRUE(engine_->Free(before.data, one_).ok());
}

TEST_F(StreamsTest, AStreamThatIsCapturedIsNotAskedForAnEvent) {
  Make({.grow_bytes = 2 * kMiB}, 2 * kMiB);
  void* const first = Cycle(one_);
  gpu_.SetCapturing(one_, true);
  EXPECT_EQ(engine_->Allocate(2 * kMiB, other_).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->StreamWaits(other_, one_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine_->ForgetStream(one_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(gpu_.waits(), 0u);
  EXPECT_EQ(gpu_.events(), 0u);
  gpu_.SetCapturing(one_, false);
  EXPECT_EQ(engine_->Allocate(2 * kMiB, other_)->data, first);
}

TEST_F(StreamsTest, WhereOneStreamIsCapturedAnotherIsWaitedFor) {
  // In either order of polling.
  for (void* const captured : {one_, other_}) {
    Make({.grow_bytes = 2 * kMiB}, 4 * kMiB);
    const Block first = engine_->Allocate(2 * kMiB, one_).value();
    const Block second = engine_->Allocate(2 * kMiB, other_).value();
    gpu_.Use(first, one_);
    gpu_.Use(second, other_);
    ASSERT_TRUE(engine_->Free(first.data, one_).ok());
    ASSERT_TRUE(engine_->Free(second.data, other_).ok());
    gpu_.SetCapturing(captured, true);
    const auto block = engine_->Allocate(2 * kMiB, Named(80));
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_EQ(block->data, captured == one_ ? second.data : first.data);
    gpu_.SetCapturing(captured, false);
    gpu_.Finish();
  }
}

TEST_F(StreamsTest, TheLegacyStreamIsMadeToWaitForNothingWhileOneThatWaitsForItIsCaptured) {
  Make({.grow_bytes = 2 * kMiB}, 2 * kMiB);
  void* const blocking = Named(16);
  const Block block = engine_->Allocate(2 * kMiB, one_).value();
  gpu_.Use(block, one_);
  ASSERT_TRUE(engine_->Free(block.data, one_).ok());
  gpu_.SetCapturing(blocking, true);
  EXPECT_EQ(engine_->Allocate(2 * kMiB, nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(gpu_.waits(), 0u);
  gpu_.SetCapturing(blocking, false);
  EXPECT_TRUE(engine_->Allocate(2 * kMiB, nullptr).ok());
}

TEST_F(StreamsTest, PerThreadStreamsAreOneForEachThread) {
  Make({.reuse = {.allow_internal_dependencies = false}, .grow_bytes = 2 * kMiB}, 2 * kMiB);
  void* first = nullptr;
  std::thread([&] { first = Cycle(PerThreadStream()); }).join();
  // Its work is still pending, on a stream of another thread. It is not a new thread's stream
  // either, which may have the old thread's number.
  EXPECT_FALSE(engine_->Allocate(2 * kMiB, PerThreadStream()).ok());
  std::thread([&] { EXPECT_FALSE(engine_->Allocate(2 * kMiB, PerThreadStream()).ok()); }).join();
  gpu_.Finish();
  EXPECT_EQ(engine_->Allocate(2 * kMiB, PerThreadStream())->data, first);
}

// Another thread's stream needs an event of the legacy stream, which such a capture forbids.
TEST_F(StreamsTest, ItsOwnPerThreadStreamIsWaitedForWhileABlockingStreamIsCaptured) {
  Make({.grow_bytes = 2 * kMiB}, 64 * kMiB);
  Cycle(PerThreadStream());
  std::thread([&] { Cycle(PerThreadStream()); }).join();
  gpu_.SetCapturing(Named(16), true);
  EXPECT_EQ(engine_->FreeAllBlocks(PerThreadStream()).value(), 2 * kMiB);
  EXPECT_EQ(engine_->FreeAllBlocks(std::nullopt).status().code(),
            absl::StatusCode::kFailedPrecondition);
  gpu_.SetCapturing(Named(16), false);
  EXPECT_EQ(engine_->FreeAllBlocks(std::nullopt).value(), 2 * kMiB);
}

TEST_F(StreamsTest, BlocksThatAThreadKeepsForItsStreamAreNotReusedByAnother) {
  Make({.reuse = {.allow_internal_dependencies = false}, .grow_bytes = 2 * kMiB}, 2 * kMiB);
  std::atomic<int> step{0};
  void* first = nullptr;
  std::thread holder([&] {
    first = Cycle(PerThreadStream());
    step = 1;
    step.notify_all();
    step.wait(1);
  });
  step.wait(0);
  EXPECT_FALSE(engine_->Allocate(2 * kMiB, PerThreadStream()).ok()) << "collected from its thread";
  gpu_.Finish();
  EXPECT_EQ(engine_->Allocate(2 * kMiB, PerThreadStream())->data, first);
  step = 2;
  step.notify_all();
  holder.join();
}

TEST_F(StreamsTest, FreeAllBlocksOfAStreamLeavesOtherStreamsBlocksWithTheirThread) {
  Make({.grow_bytes = 2 * kMiB}, 64 * kMiB);
  Cycle(one_);
  void* const kept = Cycle(other_);
  EXPECT_EQ(engine_->FreeAllBlocks(one_).value(), 2 * kMiB);
  EXPECT_EQ(engine_->TryAllocate(2 * kMiB, other_).data, kept);
}

TEST_F(StreamsTest, AStreamThatIsKnownToWaitGetsWhatThreadsKeepToo) {
  Make({.reuse = {.allow_opportunistic = false, .allow_internal_dependencies = false},
        .grow_bytes = 2 * kMiB},
       2 * kMiB);
  void* const first = Cycle(one_);
  gpu_.UserWait(other_, one_);
  ASSERT_TRUE(engine_->StreamWaits(other_, one_).ok());
  EXPECT_EQ(engine_->Allocate(2 * kMiB, other_)->data, first);
}

// Clean memory and memory that a stream freed, in one range of small blocks.
TEST_F(StreamsTest, ARangeOfSmallBlocksIsALargeOnesAgain) {
  Make({.grow_bytes = 8 * kMiB}, 8 * kMiB);
  const Block large = engine_->Allocate(4 * kMiB, one_).value();
  std::vector<Block> small;
  for (int i = 0; i < 5; ++i) small.push_back(engine_->Allocate(384 << 10, one_).value());
  for (const Block& block : small) {
    gpu_.Use(block, one_);
    ASSERT_TRUE(engine_->Free(block.data, one_).ok());
  }
  // With the work on it pending, in the order of that stream.
  EXPECT_TRUE(engine_->Allocate(4 * kMiB, one_).ok());
  EXPECT_EQ(engine_->Stats().reserved_bytes, 8 * kMiB);
  EXPECT_TRUE(engine_->Free(large.data, one_).ok());
}

TEST_F(StreamsTest, AForgottenStreamsMemoryComesBackWhenItsWorkIsDone) {
  Make({.reuse = {.allow_internal_dependencies = false}, .grow_bytes = 2 * kMiB}, 2 * kMiB);
  void* const first = Cycle(one_);
  ASSERT_TRUE(engine_->ForgetStream(one_).ok());
  // A new stream with the same handle is a different stream.
  EXPECT_FALSE(engine_->Allocate(2 * kMiB, one_).ok());
  gpu_.Finish();
  EXPECT_EQ(engine_->Allocate(2 * kMiB, one_)->data, first);
}

TEST_F(StreamsTest, AStreamThatThePoolHasNotSeenIsForgottenWithoutAnEvent) {
  Make({.grow_bytes = 2 * kMiB}, 2 * kMiB);
  Cycle(one_);
  ASSERT_TRUE(engine_->ForgetStream(other_).ok());
  EXPECT_EQ(gpu_.events(), 0u);
}

TEST_F(StreamsTest, MemoryFreedAfterASyncIsUsableOnAnyStream) {
  Make({.reuse = {.allow_opportunistic = false, .allow_internal_dependencies = false},
        .grow_bytes = 2 * kMiB},
       2 * kMiB);
  const Block block = engine_->Allocate(2 * kMiB, one_).value();
  gpu_.Use(block, one_);
  ASSERT_TRUE(engine_->FreeSynchronized(block.data).ok());
  EXPECT_TRUE(gpu_.Idle());
  EXPECT_EQ(engine_->Allocate(2 * kMiB, other_)->data, block.data);
  EXPECT_EQ(engine_->FreeSynchronized(&gpu_).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StreamsTest, MemoryForAnyStreamHasNoWorkOnIt) {
  Make({.grow_bytes = 2 * kMiB}, 4 * kMiB);
  const Block pending = engine_->Allocate(2 * kMiB, nullptr).value();
  gpu_.Use(pending, nullptr);
  ASSERT_TRUE(engine_->Free(pending.data, nullptr).ok());
  const Block leased = engine_->AllocateSynchronized(2 * kMiB).value();
  EXPECT_NE(leased.data, pending.data);
  EXPECT_FALSE(gpu_.Idle()) << "there was no need to wait";
  const Block waited_for = engine_->AllocateSynchronized(2 * kMiB).value();
  EXPECT_EQ(waited_for.data, pending.data);
  EXPECT_TRUE(gpu_.Idle());
  EXPECT_EQ(engine_->AllocateSynchronized(1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->AllocateSynchronized(0).status().code(), absl::StatusCode::kInvalidArgument);
  // Small blocks from memory that a stream freed are usable by any stream, too.
  gpu_.Use(waited_for, one_);
  ASSERT_TRUE(engine_->FreeSynchronized(waited_for.data).ok());
  const Block small = engine_->AllocateSynchronized(512).value();
  ASSERT_TRUE(engine_->FreeSynchronized(small.data).ok());
  EXPECT_TRUE(engine_->Allocate(2 * kMiB, other_).ok());
}

TEST_F(StreamsTest, MemoryForAnyStreamIsThereWhileOneIsCaptured) {
  Make({.reuse = {.allow_opportunistic = false}, .grow_bytes = 2 * kMiB}, 6 * kMiB);
  const Block of_captured = engine_->Allocate(2 * kMiB, one_).value();
  ASSERT_TRUE(engine_->Free(of_captured.data, one_).ok());
  const Block of_other = engine_->Allocate(2 * kMiB, other_).value();
  gpu_.Use(of_other, other_);
  gpu_.SetCapturing(one_, true);
  EXPECT_TRUE(engine_->AllocateSynchronized(2 * kMiB).ok()) << "leased";
  ASSERT_TRUE(engine_->Free(of_other.data, other_).ok());
  EXPECT_EQ(engine_->AllocateSynchronized(2 * kMiB)->data, of_other.data) << "waited for";
  EXPECT_FALSE(engine_->AllocateSynchronized(2 * kMiB).ok()) << "the captured one's";
  gpu_.SetCapturing(one_, false);
  EXPECT_EQ(engine_->AllocateSynchronized(2 * kMiB)->data, of_captured.data);
}

TEST_F(StreamsTest, AStreamOfAnotherDeviceIsRefused) {
  Make({}, 64 * kMiB);
  void* const foreign = Named(0xbad);
  EXPECT_EQ(engine_->Allocate(512, foreign).status().code(), absl::StatusCode::kInvalidArgument);
  const Block block = engine_->Allocate(512, one_).value();
  EXPECT_EQ(engine_->Free(block.data, foreign).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine_->Free(block.data, one_).ok()) << "it is the caller's still";
}

TEST_F(StreamsTest, ASegmentIsMovedWhenItsWorkIsDone) {
  Make({.grow_bytes = 2 * kMiB, .thread_caches = false}, 64 * kMiB);
  std::vector<Block> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(engine_->Allocate(2 * kMiB, one_).value());
  const auto free_some = [&] {
    for (const size_t i : {0, 2}) {
      gpu_.Use(blocks[i], one_);
      ASSERT_TRUE(engine_->Free(blocks[i].data, one_).ok());
    }
  };
  free_some();
  const Block large = engine_->Allocate(4 * kMiB, other_).value();
  EXPECT_EQ(engine_->Stats().moves, 0u) << "the work is not done";
  EXPECT_EQ(engine_->Stats().reserved_bytes, 12 * kMiB);
  gpu_.Finish();
  ASSERT_TRUE(engine_->Free(large.data, other_).ok());
  EXPECT_EQ(engine_->Allocate(8 * kMiB, other_)->data, large.data);
  EXPECT_EQ(engine_->Stats().moves, 2u);
  EXPECT_EQ(engine_->Stats().reserved_bytes, 12 * kMiB);
}

TEST_F(StreamsTest, FreeAllBlocksWaitsForTheStreamsAndGivesAllBack) {
  Make({.grow_bytes = 2 * kMiB}, 64 * kMiB);
  Cycle(one_);
  Cycle(other_);
  EXPECT_EQ(engine_->Trim(0).value(), 0u) << "the work is not done";
  EXPECT_EQ(engine_->FreeAllBlocks(one_).value(), 2 * kMiB);
  EXPECT_EQ(engine_->FreeAllBlocks(std::nullopt).value(), 2 * kMiB);
  EXPECT_EQ(engine_->Stats().reserved_bytes, 0u);
}

}  // namespace engine_stream_reuse_test
}  // namespace gpumem::internal
