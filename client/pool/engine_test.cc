// SPDX-License-Identifier: Apache-2.0
// The pool's engine by examples. engine_threads_test.cc has those about threads.
#include "client/pool/engine.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "client/pool/size_class.h"
#include "client/pool/testing/engine_fixture.h"
#include "client/pool/testing/fake_segments.h"
#include "common/bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace engine_test {

using absl::StatusCode;
using ::testing::HasSubstr;

TEST(SizeClassTest, ClassesHoldWhatIsPutIntoThem) {
  for (uint64_t bytes = 1; bytes <= kMaxSmallBytes; bytes += bytes < 9000 ? 1 : 509) {
    const int size_class = SizeClassOf(bytes);
    ASSERT_LT(size_class, kSizeClasses);
    ASSERT_GE(ClassBytes(size_class), bytes);
    ASSERT_EQ(SizeClassOf(ClassBytes(size_class)), size_class) << bytes;
    if (bytes > 16 * kBlockAlignment) {
      ASSERT_LE(ClassBytes(size_class), bytes + bytes / 8 + kBlockAlignment);
    }
    ASSERT_LT(size_class == 0 ? 0 : ClassBytes(size_class - 1), bytes);
  }
  EXPECT_EQ(SizeClassOf(kMaxSmallBytes), kSizeClasses - 1);
  EXPECT_EQ(ClassBytes(kSizeClasses - 1), kMaxSmallBytes);
}

using EngineTest = EngineFixture;

TEST_F(EngineTest, BlocksAreAlignedLargeEnoughAndApart) {
  Make();
  std::vector<Block> blocks;
  for (uint64_t bytes : {uint64_t{1}, uint64_t{513}, uint64_t{100000}, kMiB, 3 * kMiB + 1}) {
    blocks.push_back(Allocate(bytes));
    EXPECT_GE(blocks.back().bytes, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().data) % 512, 0u);
    EXPECT_EQ(engine_->Find(blocks.back().data)->bytes, blocks.back().bytes);
  }
  for (const Block& one : blocks) {
    for (const Block& other : blocks) {
      const auto* from = static_cast<char*>(one.data);
      const auto* to = static_cast<char*>(other.data);
      EXPECT_TRUE(&one == &other || from + one.bytes <= to || to + other.bytes <= from);
    }
  }
}

TEST_F(EngineTest, WhatIsNoBlockIsRefused) {
  Make({}, {.capacity = 256 * kMiB});
  EXPECT_EQ(engine_->Allocate(0, nullptr).status().code(), StatusCode::kInvalidArgument);
  for (const uint64_t bytes : {UINT64_MAX, UINT64_MAX - kMiB, UINT64_MAX - 600}) {
    EXPECT_EQ(engine_->Allocate(bytes, nullptr).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(source_->leased_bytes(), 0u) << "the pool grew for what cannot be";
  const Block block = Allocate(4096);
  const Block large = Allocate(4 * kMiB);
  for (const Block& one : {block, large}) {
    EXPECT_EQ(engine_->Free(static_cast<char*>(one.data) + 512, nullptr).code(),
              StatusCode::kInvalidArgument);
    Free(one);
    const absl::Status twice = engine_->Free(one.data, nullptr);
    EXPECT_EQ(twice.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(twice.message()), HasSubstr("freed already"));
    EXPECT_EQ(engine_->Find(one.data).status().code(), StatusCode::kNotFound);
  }
  EXPECT_EQ(engine_->Free(nullptr, nullptr).code(), StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, ABlockSpansSegmentsThatLieTogether) {
  Make({.grow_bytes = 2 * kMiB});
  const Block first = Allocate(2 * kMiB), second = Allocate(2 * kMiB);
  EXPECT_EQ(source_->segments(), 2u);
  Free(first);
  Free(second);
  const Block both = Allocate(4 * kMiB);
  EXPECT_EQ(both.data, first.data);
  EXPECT_EQ(source_->leased_bytes(), 4 * kMiB);
  // For a larger block the missing memory is leased behind them.
  Free(both);
  EXPECT_EQ(Allocate(10 * kMiB).data, first.data);
  EXPECT_EQ(source_->leased_bytes(), 10 * kMiB);
}

TEST_F(EngineTest, WhereTheAddressIsTakenItGrowsElsewhere) {
  Make({.grow_bytes = 2 * kMiB});
  const Block first = Allocate(2 * kMiB);
  source_->TakeAddress(reinterpret_cast<uintptr_t>(first.data) + 2 * kMiB);
  Free(first);
  const Block larger = Allocate(4 * kMiB);
  EXPECT_NE(larger.data, first.data);
  EXPECT_EQ(source_->leased_bytes(), 6 * kMiB);
}

TEST_F(EngineTest, TrimGivesWholeFreeSegmentsBackAndKeepsWhatItIsTold) {
  Make({.grow_bytes = 2 * kMiB});
  std::vector<Block> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(Allocate(2 * kMiB));
  const Block used = blocks[3];
  for (const Block& block : blocks) {
    if (block.data != used.data) Free(block);
  }
  EXPECT_EQ(engine_->Trim(6 * kMiB).value(), 8 * kMiB);
  EXPECT_EQ(engine_->Stats().free_bytes, 6 * kMiB);
  EXPECT_EQ(engine_->Trim(0).value(), 6 * kMiB);
  EXPECT_EQ(source_->leased_bytes(), 2 * kMiB) << "what is used stays";
  EXPECT_EQ(engine_->Find(used.data)->bytes, 2 * kMiB);
}

TEST_F(EngineTest, UnderPressureItGivesWhatIsEnough) {
  Make({.grow_bytes = 4 * kMiB});
  std::vector<Block> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(Allocate(4 * kMiB));
  engine_->GiveBack(kMiB);
  EXPECT_EQ(source_->leased_bytes(), 24 * kMiB) << "nothing is free";
  const Block used = blocks.back();
  blocks.pop_back();
  for (const Block& block : blocks) Free(block);
  engine_->GiveBack(5 * kMiB);
  EXPECT_EQ(source_->leased_bytes(), 16 * kMiB) << "two segments are enough";
  engine_->GiveBack(100 * kMiB);
  EXPECT_EQ(source_->leased_bytes(), 4 * kMiB) << "what is used stays";
  EXPECT_EQ(engine_->Stats().given_under_pressure_bytes, 20 * kMiB);
  Free(used);
}

TEST_F(EngineTest, AboveTheReleaseThresholdMemoryGoesBackByItself) {
  Make({.release_threshold_bytes = 4 * kMiB, .grow_bytes = 2 * kMiB, .thread_caches = false});
  std::vector<Block> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(Allocate(2 * kMiB));
  for (const Block& block : blocks) Free(block);
  EXPECT_EQ(source_->leased_bytes(), 4 * kMiB);
}

TEST_F(EngineTest, TheLimitHoldsAndFreeMemoryIsGivenBackBeforeAQuotaRefuses) {
  Make({.limit_bytes = 8 * kMiB, .grow_bytes = 2 * kMiB},
       {.capacity = 100 * kMiB, .places = false});
  const Block small = Allocate(3 * kMiB);
  const auto over = engine_->Allocate(6 * kMiB, nullptr);
  EXPECT_EQ(over.status().code(), StatusCode::kResourceExhausted);
  // Free memory in separate pieces does not suffice, and must be given back first.
  Free(small);
  EXPECT_GE(Allocate(8 * kMiB).bytes, 8 * kMiB);
  EXPECT_EQ(source_->leased_bytes(), 8 * kMiB);
  EXPECT_EQ(engine_->Stats().out_of_memory, 1u);
}

TEST_F(EngineTest, ALimitCanBeUsedToTheLastByte) {
  // Neither the limit nor the quota is a multiple of a segment.
  for (const bool quota : {false, true}) {
    Make({.limit_bytes = quota ? UINT64_MAX : 20 * kMiB}, {.capacity = 20 * kMiB});
    Allocate(2 * kMiB);
    Allocate(6 * kMiB);
    Allocate(8 * kMiB);
    EXPECT_TRUE(engine_->Allocate(4 * kMiB, nullptr).ok());
    EXPECT_FALSE(engine_->Allocate(4 * kMiB, nullptr).ok());
    EXPECT_EQ(source_->leased_bytes(), 20 * kMiB);
  }
  Make({}, {.capacity = 1234 * kMiB});
  EXPECT_TRUE(engine_->Allocate(1234 * kMiB, nullptr).ok());
}

TEST_F(EngineTest, PressureIsOnlyForBytesThatAreNeeded) {
  for (const bool places : {true, false}) {
    Make({}, {.capacity = 20 * kMiB, .places = places});
    Allocate(16 * kMiB);
    Allocate(4 * kMiB);
    EXPECT_EQ(source_->pressed_bytes(), 0u) << "there was what was needed";
    EXPECT_FALSE(engine_->Allocate(2 * kMiB, nullptr).ok());
    EXPECT_EQ(source_->pressed_bytes(), 2 * kMiB);
  }
}

TEST_F(EngineTest, TheOutOfMemoryCallbackMayFreeAndTryAgain) {
  Make({}, {.capacity = 4 * kMiB});
  const Block held = Allocate(4 * kMiB);
  int asked = 0;
  engine_->SetOutOfMemoryCallback([&](uint64_t bytes) {
    EXPECT_EQ(bytes, 3 * kMiB);
    if (++asked == 1) Free(held);
    return asked == 1;
  });
  EXPECT_TRUE(engine_->Allocate(3 * kMiB, nullptr).ok());
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(engine_->Allocate(3 * kMiB, nullptr).ok());
  EXPECT_EQ(asked, 2);
}

TEST_F(EngineTest, ItWaitsForWhatOthersFree) {
  Make({.wait = absl::Seconds(60)}, {.capacity = 4 * kMiB});
  const Block held = Allocate(4 * kMiB);
  std::thread other([&] { Free(held); });
  EXPECT_TRUE(engine_->Allocate(4 * kMiB, nullptr).ok());
  other.join();
}

// A daemon that refuses requests of more than `most` bytes with a given status.
class RefusingSegments : public FakeSegments {
 public:
  RefusingSegments(uint64_t most, absl::Status refusal)
      : FakeSegments({}), most_(most), refusal_(std::move(refusal)) {}
  absl::StatusOr<std::vector<Range>> Acquire(uint64_t bytes, uint64_t count, uintptr_t at,
                                             bool wish) override {
    if (bytes * count > most_) return refusal_;
    return FakeSegments::Acquire(bytes, count, at, wish);
  }

 private:
  const uint64_t most_;
  const absl::Status refusal_;
};

TEST_F(EngineTest, MoreBytesThanAnyDeviceHasAreRefused) {
  Make();
  // The second is a multiple of a block's alignment, and of no segment's.
  for (uint64_t bytes : {UINT64_MAX, UINT64_MAX - 511}) {
    EXPECT_EQ(engine_->Allocate(bytes, nullptr).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(EngineTest, WhereTheDaemonGivesNotSoMuchAtOnceTheNeedIsLeased) {
  auto source = std::make_unique<RefusingSegments>(4 * kMiB, absl::InvalidArgumentError("no"));
  source_ = source.get();
  engine_ = std::make_unique<Engine>(std::move(source), MakeHostStreamApi(),
                                     PoolOptions{.grow_bytes = 32 * kMiB});
  Allocate(4 * kMiB);
  EXPECT_EQ(source_->leased_bytes(), 4 * kMiB);
  Allocate(2 * kMiB);
  EXPECT_EQ(source_->leased_bytes(), 6 * kMiB) << "behind the first segment as well";
  EXPECT_EQ(engine_->Allocate(6 * kMiB, nullptr).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, ARefusalThatDoesNotPassIsNotWaitedFor) {
  auto source = std::make_unique<RefusingSegments>(0, absl::PermissionDeniedError("no"));
  source_ = source.get();
  engine_ = std::make_unique<Engine>(std::move(source), MakeHostStreamApi(),
                                     PoolOptions{.wait = absl::InfiniteDuration()});
  EXPECT_EQ(engine_->Allocate(kMiB, nullptr).status().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(engine_->Stats().out_of_memory, 1u);
  EXPECT_TRUE(source_->waits().empty());
}

TEST_F(EngineTest, AnEmptyPoolThatIsDeniedMemoryMovesNothing) {
  Make({}, {.capacity = 4 * kMiB});
  EXPECT_EQ(engine_->Allocate(6 * kMiB, nullptr).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(source_->pressed_bytes(), 6 * kMiB);
  EXPECT_EQ(engine_->Stats().moves, 0u);
  EXPECT_TRUE(engine_->Allocate(4 * kMiB, nullptr).ok());
}

TEST_F(EngineTest, WithoutADaemonLeasedMemoryStaysUsable) {
  Make({.grow_bytes = 4 * kMiB});
  const Block block = Allocate(2 * kMiB);
  source_->SetUnavailable(true);
  EXPECT_TRUE(engine_->Allocate(2 * kMiB, nullptr).ok());
  EXPECT_EQ(engine_->Allocate(2 * kMiB, nullptr).status().code(), StatusCode::kUnavailable);
  Free(block);
  EXPECT_TRUE(engine_->Allocate(kMiB + 1, nullptr).ok());
}

TEST_F(EngineTest, AFreeIsOneThoughTheDaemonTakesNothingBack) {
  Make({.release_threshold_bytes = 0, .grow_bytes = 2 * kMiB, .thread_caches = false});
  const Block block = Allocate(2 * kMiB);
  source_->SetUnavailable(true);
  Free(block);
  EXPECT_EQ(engine_->Stats().used_bytes, 0u);
}

TEST_F(EngineTest, MemoryJoinedByARefusedRequestIsFoundAtOnce) {
  Make({.grow_bytes = 8 * kMiB}, {.capacity = 8 * kMiB});
  const Block large = Allocate(4 * kMiB);
  std::vector<Block> small;
  for (int i = 0; i < 5; ++i) small.push_back(Allocate(384 << 10));
  for (const Block& block : small) Free(block);
  Free(Allocate(4 * kMiB));
  Free(large);
}

TEST_F(EngineTest, StatsAndHighWaterMarks) {
  for (const bool caches : {false, true}) {
    Make({.grow_bytes = 8 * kMiB, .thread_caches = caches}, {.capacity = 64 * kMiB});
    const Block small = Allocate(1000), large = Allocate(3 * kMiB);
    PoolStats stats = engine_->Stats();
    EXPECT_EQ(stats.reserved_bytes, 8 * kMiB);
    EXPECT_EQ(stats.used_bytes, 1024 + 3 * kMiB);
    EXPECT_EQ(stats.free_bytes, stats.reserved_bytes - stats.used_bytes);
    EXPECT_EQ(stats.used_blocks, 2u);
    EXPECT_EQ(stats.allocations, 2u);
    EXPECT_EQ(engine_->MemGetInfo()->free_bytes, 64 * kMiB - stats.used_bytes);
    EXPECT_EQ(engine_->MemGetInfo()->total_bytes, 64 * kMiB);
    Free(small);
    Free(large);
    stats = engine_->Stats();
    EXPECT_EQ(stats.used_bytes, 0u);
    EXPECT_EQ(stats.used_blocks, 0u);
    EXPECT_EQ(stats.frees, 2u);
    EXPECT_EQ(stats.used_peak_bytes, 1024 + 3 * kMiB);
    ASSERT_TRUE(engine_->Trim(0).ok());
    engine_->ResetPeaks();
    EXPECT_EQ(engine_->Stats().used_peak_bytes, 0u);
    EXPECT_EQ(engine_->Stats().reserved_peak_bytes, 0u);
  }
}

TEST_F(EngineTest, AReleaseThresholdTurnsNoCachesOn) {
  for (const bool hook : {false, true}) {
    Make({.thread_caches = hook});
    if (hook) engine_->SetHook([](const PoolEvent&) {});
    engine_->SetReleaseThreshold(UINT64_MAX);
    Free(Allocate(4096));
    EXPECT_EQ(engine_->TryAllocate(4096, nullptr).data, nullptr);
  }
}

TEST_F(EngineTest, TheHookSeesEveryBlockAndSegment) {
  Make({.grow_bytes = 2 * kMiB});
  Free(Allocate(4096));  // cached by this thread for now
  std::vector<PoolEvent> events;
  engine_->SetHook([&](const PoolEvent& event) { events.push_back(event); });
  const Block block = Allocate(4096);
  Free(block);
  ASSERT_TRUE(engine_->Trim(0).ok());
  engine_->SetHook(nullptr);
  Free(Allocate(4096));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].what, PoolEvent::What::kAllocate);
  EXPECT_EQ(events[0].data, block.data);
  EXPECT_EQ(events[0].bytes, 4096u);
  EXPECT_EQ(events[1].what, PoolEvent::What::kFree);
  EXPECT_EQ(events[2].what, PoolEvent::What::kShrink);
  EXPECT_EQ(events[2].bytes, 2 * kMiB);
}

}  // namespace engine_test
}  // namespace gpumem::internal
