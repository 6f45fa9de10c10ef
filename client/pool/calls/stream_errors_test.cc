// SPDX-License-Identifier: Apache-2.0
// An engine whose driver refuses calls about streams, or cannot say whether one is captured.
#include <memory>
#include <optional>
#include <utility>

#include "client/pool/engine.h"
#include "client/pool/testing/fake_gpu.h"
#include "client/pool/testing/fake_segments.h"
#include "common/bytes.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace stream_errors_test {

using absl::StatusCode;

Stream Named(uintptr_t name) { return reinterpret_cast<Stream>(name); }

// What the driver answers.
struct Answers {
  bool knows_free = true;  // false: a stream has to be asked again, with CheckFree
  absl::Status check, record, done, wait, synchronize;
};

class RefusingStreams : public FakeStreams {
 public:
  RefusingStreams(FakeGpu* gpu, const Answers* answers) : FakeStreams(gpu), answers_(*answers) {}
  bool IsFree(Stream stream) override { return answers_.knows_free && FakeStreams::IsFree(stream); }
  absl::Status CheckFree(Stream stream) override {
    return answers_.check.ok() ? FakeStreams::CheckFree(stream) : answers_.check;
  }
  absl::StatusOr<EventHandle> Record(Stream stream) override {
    if (!answers_.record.ok()) return answers_.record;
    return FakeStreams::Record(stream);
  }
  absl::StatusOr<bool> Done(EventHandle event) override {
    if (!answers_.done.ok()) return answers_.done;
    return FakeStreams::Done(event);
  }
  absl::Status Wait(Stream stream, EventHandle event) override {
    return answers_.wait.ok() ? FakeStreams::Wait(stream, event) : answers_.wait;
  }
  absl::Status Synchronize(EventHandle event) override {
    return answers_.synchronize.ok() ? FakeStreams::Synchronize(event) : answers_.synchronize;
  }
  absl::Status SynchronizeDevice() override { return answers_.synchronize; }

 private:
  const Answers& answers_;
};

class StreamErrorsTest : public testing::Test {
 protected:
  StreamErrorsTest() { Make({.grow_bytes = 2 * kMiB}); }
  void Make(const PoolOptions& options, uint64_t capacity = 8 * kMiB) {
    gpu_.MakeNonBlocking(one_);
    gpu_.MakeNonBlocking(other_);
    engine_ = std::make_unique<Engine>(
        std::make_unique<FakeSegments>(FakeSegments::Options{
            .capacity = capacity,
            .unmapped = [this](uintptr_t at, uint64_t bytes) { gpu_.Unmap(at, bytes); }}),
        std::make_unique<RefusingStreams>(&gpu_, &answers_), options);
  }
  void TearDown() override {
    answers_ = {};
    gpu_.Finish();
    EXPECT_TRUE(engine_->CheckInvariants().ok());
    EXPECT_EQ(gpu_.violations(), 0u);
  }
  // Allocates on the stream, uses it there, and frees it there.
  void UseAndFree(uint64_t bytes, Stream stream) {
    const Block block = engine_->Allocate(bytes, stream).value();
    gpu_.Use(block, stream);
    EXPECT_TRUE(engine_->Free(block.data, stream).ok());
  }

  Stream const one_ = Named(16), other_ = Named(32);
  Stream const bad_ = Named(0xbad);  // of another device
  Answers answers_;
  FakeGpu gpu_{1};
  std::unique_ptr<Engine> engine_;
};

TEST_F(StreamErrorsTest, AStreamThatMayBeCapturedIsAskedAgain) {
  answers_.knows_free = false;
  const Block block = engine_->Allocate(kMiB, one_).value();
  EXPECT_TRUE(engine_->Free(block.data, one_).ok());
  EXPECT_EQ(engine_->TryAllocate(kMiB, one_).data, nullptr);
  EXPECT_FALSE(engine_->TryFree(block.data, one_));
  EXPECT_TRUE(engine_->StreamWaits(one_, other_).ok());
  EXPECT_TRUE(engine_->FreeAllBlocks(one_).ok());
  EXPECT_TRUE(engine_->ForgetStream(one_).ok());
  // An error that is no capture is told as it is.
  answers_.check = absl::InvalidArgumentError("no such stream");
  EXPECT_EQ(engine_->Allocate(kMiB, one_).status(), answers_.check);
  EXPECT_EQ(engine_->Free(block.data, one_), answers_.check);
  EXPECT_EQ(engine_->ForgetStream(one_), answers_.check);
}

TEST_F(StreamErrorsTest, StreamsOfOtherDevicesAreRefused) {
  const Block block = engine_->Allocate(kMiB, one_).value();
  EXPECT_EQ(engine_->Allocate(kMiB, bad_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_->Free(block.data, bad_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_->StreamWaits(bad_, one_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_->StreamWaits(one_, bad_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_->FreeAllBlocks(bad_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine_->ForgetStream(bad_).ok()) << "it was never used here";
  EXPECT_TRUE(engine_->Free(block.data, one_).ok());
}

TEST_F(StreamErrorsTest, WithoutCachesBlocksAreCheckedAlike) {
  Make({.grow_bytes = 2 * kMiB, .thread_caches = false});
  const Block block = engine_->Allocate(kMiB, one_).value();
  EXPECT_EQ(engine_->Free(block.data, bad_).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine_->Free(block.data, one_).ok());
  EXPECT_EQ(engine_->Free(block.data, one_).code(), StatusCode::kInvalidArgument) << "twice";
}

TEST_F(StreamErrorsTest, ASynchronizedFreeNeedsTheDevice) {
  const Block block = engine_->AllocateSynchronized(kMiB).value();
  answers_.synchronize = absl::InternalError("CUDA_ERROR_LAUNCH_FAILED");
  EXPECT_EQ(engine_->FreeSynchronized(block.data), answers_.synchronize);
  answers_ = {};
  EXPECT_TRUE(engine_->FreeSynchronized(block.data).ok()) << "it is still a block";
}

TEST_F(StreamErrorsTest, AFailedWaitIsTold) {
  UseAndFree(4 * kMiB, one_);
  answers_.synchronize = absl::InternalError("CUDA_ERROR_LAUNCH_FAILED");
  EXPECT_EQ(engine_->FreeAllBlocks(std::nullopt).status(), answers_.synchronize);
  EXPECT_EQ(engine_->Stats().reserved_bytes, 4 * kMiB) << "its work is not done";
  answers_ = {};
  EXPECT_EQ(engine_->FreeAllBlocks(std::nullopt).value(), 4 * kMiB);
}

// The event was recorded into a graph: the next one tells.
TEST_F(StreamErrorsTest, AnEventThatCannotBeAskedIsRecordedAgain) {
  UseAndFree(4 * kMiB, one_);
  answers_.done = absl::InternalError("CUDA_ERROR_CAPTURED_EVENT");
  EXPECT_EQ(engine_->Trim(0).value(), 0u);
  answers_ = {};
  EXPECT_EQ(engine_->Trim(0).value(), 0u);
  gpu_.Finish();
  EXPECT_EQ(engine_->Trim(0).value(), 4 * kMiB);
}

TEST_F(StreamErrorsTest, AStreamWhoseWorkCannotBeMarkedIsNotForgotten) {
  UseAndFree(4 * kMiB, one_);
  answers_.record = absl::InternalError("CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(engine_->ForgetStream(one_), answers_.record);
  answers_ = {};
  EXPECT_TRUE(engine_->ForgetStream(one_).ok());
}

// Its memory goes to another stream, which waits for the event of its end.
TEST_F(StreamErrorsTest, MemoryOfAForgottenStreamIsReused) {
  Make({.grow_bytes = 2 * kMiB}, /*capacity=*/4 * kMiB);
  UseAndFree(4 * kMiB, one_);
  ASSERT_TRUE(engine_->ForgetStream(one_).ok());
  answers_.wait = absl::InternalError("CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(engine_->Allocate(4 * kMiB, other_).status().code(), StatusCode::kResourceExhausted);
  answers_ = {};
  const absl::StatusOr<Block> block = engine_->Allocate(4 * kMiB, other_);
  ASSERT_TRUE(block.ok()) << block.status();
  gpu_.Use(*block, other_);
  EXPECT_GT(gpu_.waits(), 0u);
  EXPECT_TRUE(engine_->Free(block->data, other_).ok());
}

// Without the event, the end of the stream's work is unknown.
TEST_F(StreamErrorsTest, MemoryOfAForgottenStreamWhoseEventIsLostIsNotReused) {
  Make({.grow_bytes = 2 * kMiB}, /*capacity=*/4 * kMiB);
  UseAndFree(4 * kMiB, one_);
  ASSERT_TRUE(engine_->ForgetStream(one_).ok());
  answers_.done = absl::InternalError("CUDA_ERROR_CAPTURED_EVENT");
  EXPECT_EQ(engine_->Trim(0).value(), 0u);
  answers_ = {};
  EXPECT_EQ(engine_->Trim(0).value(), 0u);
  for (const uint64_t bytes : {uint64_t{512}, 4 * kMiB}) {
    EXPECT_EQ(engine_->Allocate(bytes, other_).status().code(), StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(gpu_.waits(), 0u);
}

}  // namespace stream_errors_test
}  // namespace gpumem::internal
