// SPDX-License-Identifier: Apache-2.0
// An engine that waits for memory: in the daemon's queue, and for blocks freed here.
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/pool/testing/engine_fixture.h"
#include "client/pool/testing/fake_gpu.h"
#include "common/bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace engine_waiting_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kLong = absl::Seconds(60);

// A GPU that completes after a number of polls.
class SlowStreams : public FakeStreams {
 public:
  explicit SlowStreams(FakeGpu* gpu) : FakeStreams(gpu), gpu_(gpu) {}
  absl::StatusOr<bool> Done(EventHandle event) override {
    if (++asked_ == 20) gpu_->Finish();
    return FakeStreams::Done(event);
  }
  int asked() const { return asked_; }

 private:
  FakeGpu* const gpu_;
  int asked_ = 0;
};

class EngineWaitingTest : public EngineFixture {
 protected:
  // Starts a thread that allocates that much; returns once it is the only one that waits.
  std::thread Waiter(uint64_t bytes, absl::StatusCode expected = absl::StatusCode::kOk) {
    return std::thread([this, bytes, expected] {
      auto block = engine_->Allocate(bytes, nullptr);
      EXPECT_EQ(block.status().code(), expected) << block.status();
    });
  }
};

TEST_F(EngineWaitingTest, ItIsServedByTheDaemon) {
  Make({.grow_bytes = 2 * kMiB, .wait = kLong}, {.capacity = 4 * kMiB});
  Allocate(4 * kMiB);
  std::thread waiter = Waiter(6 * kMiB);
  source_->AwaitWaiters(1);
  source_->SetCapacity(10 * kMiB);
  waiter.join();
  EXPECT_THAT(source_->waits(), ElementsAre(6 * kMiB));
  EXPECT_EQ(engine_->Stats().used_bytes, 10 * kMiB);
  EXPECT_EQ(source_->leased_bytes(), 10 * kMiB);
}

TEST_F(EngineWaitingTest, WhatIsFreedHereServesItFirst) {
  Make({.wait = kLong}, {.capacity = 4 * kMiB});
  const Block held = Allocate(4 * kMiB);
  std::thread waiter = Waiter(4 * kMiB);
  source_->AwaitWaiters(1);
  Free(held);
  waiter.join();
  EXPECT_EQ(source_->leased_bytes(), 4 * kMiB);
}

// A place in the queue is kept if a free does not help.
TEST_F(EngineWaitingTest, ItKeepsItsPlaceWhileTooLittleIsFreed) {
  Make({.grow_bytes = 2 * kMiB, .wait = kLong, .thread_caches = false}, {.capacity = 8 * kMiB});
  std::vector<Block> held;
  for (int i = 0; i < 16; ++i) held.push_back(Allocate(kMiB / 2));
  std::thread waiter = Waiter(2 * kMiB);
  source_->AwaitWaiters(1);
  for (size_t i = 0; i < held.size(); i += 4) Free(held[i]);
  EXPECT_EQ(source_->waits().size(), 1u);
  source_->SetCapacity(10 * kMiB);
  waiter.join();
  EXPECT_EQ(source_->waits().size(), 1u);
  EXPECT_EQ(source_->leased_bytes(), 10 * kMiB);
}

TEST_F(EngineWaitingTest, OthersAllocateAndFreeMeanwhile) {
  Make({.grow_bytes = 2 * kMiB, .wait = kLong}, {.capacity = 8 * kMiB});
  const Block held = Allocate(6 * kMiB);
  std::thread waiter = Waiter(4 * kMiB);
  source_->AwaitWaiters(1);
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([this] {
      for (int j = 0; j < 200; ++j) {
        const Block block = Allocate(kMiB / 4);
        EXPECT_TRUE(engine_->Find(block.data).ok());
        Free(block);
      }
    });
  }
  for (std::thread& other : others) other.join();
  EXPECT_TRUE(engine_->Trim(0).ok());
  engine_->GiveBack(kMiB);
  Free(held);
  waiter.join();
}

TEST_F(EngineWaitingTest, SeveralWaitAndAreAllServed) {
  Make({.grow_bytes = 2 * kMiB, .wait = kLong}, {.capacity = 4 * kMiB});
  const Block held = Allocate(4 * kMiB);
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) waiters.push_back(Waiter(2 * kMiB));
  source_->AwaitWaiters(4);
  source_->SetCapacity(8 * kMiB);
  Free(held);
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(engine_->Stats().used_bytes, 8 * kMiB);
  EXPECT_LE(source_->leased_bytes(), 8 * kMiB);
}

// Beside free memory, so that only the missing bytes are leased: the last bytes of a limit.
TEST_F(EngineWaitingTest, ItWaitsForWhatIsMissingAlone) {
  Make({.grow_bytes = 4 * kMiB, .wait = kLong}, {.capacity = 4 * kMiB});
  Allocate(2 * kMiB);  // half of a segment
  ASSERT_EQ(source_->leased_bytes(), 4 * kMiB);
  std::thread waiter = Waiter(4 * kMiB);
  source_->AwaitWaiters(1);
  EXPECT_THAT(source_->waits(), ElementsAre(2 * kMiB));
  source_->SetCapacity(6 * kMiB);
  waiter.join();
  EXPECT_EQ(source_->leased_bytes(), 6 * kMiB);
}

TEST_F(EngineWaitingTest, OfOtherKindsItWaitsForTheWholeBlock) {
  Make({.grow_bytes = 4 * kMiB, .wait = kLong}, {.capacity = 4 * kMiB, .places = false});
  Allocate(2 * kMiB);  // half of a segment
  std::thread waiter = Waiter(4 * kMiB);
  source_->AwaitWaiters(1);
  EXPECT_THAT(source_->waits(), ElementsAre(4 * kMiB));
  source_->SetCapacity(8 * kMiB);
  waiter.join();
  EXPECT_EQ(source_->leased_bytes(), 8 * kMiB);
}

// The program's callback frees memory, but does not ask to try again.
TEST_F(EngineWaitingTest, WhatWasFreedBeforeTheWaitServesIt) {
  for (const uint64_t bytes : {kMiB, 4 * kMiB}) {
    for (const bool caches : {false, true}) {
      Make({.wait = kLong, .thread_caches = caches}, {.capacity = 4 * kMiB});
      std::vector<Block> held;
      for (uint64_t all = 0; all < 4 * kMiB; all += bytes) held.push_back(Allocate(bytes));
      engine_->SetOutOfMemoryCallback([&](uint64_t) {
        Free(held.back());
        return false;
      });
      EXPECT_EQ(Allocate(bytes).data, held.back().data);
      // A wait collects what threads keep.
      EXPECT_EQ(source_->waits().size(), caches ? 1u : 0u);
      EXPECT_EQ(source_->leased_bytes(), 4 * kMiB);
      ExpectInvariants();
    }
  }
}

TEST_F(EngineWaitingTest, WhileTheDaemonIsGoneItAsksNowAndThen) {
  Make({.wait = kLong});
  source_->SetUnavailable(true);
  int asked = 0;
  engine_->SetOutOfMemoryCallback([&](uint64_t) {
    if (++asked == 2) source_->SetUnavailable(false);
    return false;
  });
  EXPECT_TRUE(engine_->Allocate(4 * kMiB, nullptr).ok());
  EXPECT_EQ(asked, 2);
  EXPECT_THAT(source_->waits(), IsEmpty()) << "there is no queue without a daemon";
}

TEST_F(EngineWaitingTest, AWaitThatIsOverIsARefusal) {
  // Longer than the poll interval of Engine::Await, which makes no pause then.
  const absl::Duration wait = absl::Milliseconds(100);
  Make({.wait = wait}, {.capacity = 4 * kMiB});
  const Block held = Allocate(4 * kMiB);
  const absl::Time start = absl::Now();
  EXPECT_EQ(engine_->Allocate(2 * kMiB, nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_GE(absl::Now() - start, wait);
  EXPECT_EQ(engine_->Stats().out_of_memory, 1u);
  Free(held);
}

// As a daemon at its limit of waiting requests.
TEST_F(EngineWaitingTest, WhereTheDaemonLetsItNotWaitItAsksNowAndThen) {
  Make({.wait = kLong}, {.capacity = 4 * kMiB});
  const Block held = Allocate(4 * kMiB);
  source_->SetMaxWaiters(0);
  std::thread waiter = Waiter(4 * kMiB);
  while (source_->waits().size() < 2) std::this_thread::yield();
  source_->SetCapacity(8 * kMiB);
  waiter.join();
  EXPECT_LT(source_->waits().size(), 100u);
  Free(held);
}

TEST_F(EngineWaitingTest, ForItsOwnLimitItDoesNotWaitInTheQueue) {
  Make({.limit_bytes = 4 * kMiB, .wait = kLong});
  const Block held = Allocate(4 * kMiB);
  std::thread waiter = Waiter(4 * kMiB);
  std::thread other([&] { Free(held); });
  waiter.join();
  other.join();
  EXPECT_THAT(source_->waits(), IsEmpty());
}

TEST_F(EngineWaitingTest, AGrantBeyondALimitThatWasLoweredGoesBack) {
  Make({.limit_bytes = 8 * kMiB, .wait = kLong}, {.capacity = 4 * kMiB});
  const Block held = Allocate(4 * kMiB);
  std::thread waiter = Waiter(4 * kMiB);
  source_->AwaitWaiters(1);
  ASSERT_TRUE(engine_->SetLimit(6 * kMiB).ok());
  source_->SetCapacity(8 * kMiB);
  source_->AwaitWaiters(0);
  Free(held);
  waiter.join();
  EXPECT_EQ(source_->leased_bytes(), 4 * kMiB);
}

TEST_F(EngineWaitingTest, AGrantWithoutAWaiterIsReleased) {
  Make({.wait = kLong}, {.capacity = 4 * kMiB});
  const Block held = Allocate(4 * kMiB);
  source_->SetGrantsTooLate();
  std::thread waiter = Waiter(4 * kMiB);
  source_->AwaitWaiters(1);
  Free(held);
  waiter.join();
  EXPECT_EQ(source_->leased_bytes(), 4 * kMiB);
  EXPECT_EQ(engine_->Stats().segments, source_->segments());
}

TEST_F(EngineWaitingTest, WhatAnotherStreamFreesServesItWhenThatsWorkIsDone) {
  FakeGpu gpu(1);
  void* const one = &gpu;
  void* const other = &gpu + 1;
  gpu.MakeNonBlocking(one);
  gpu.MakeNonBlocking(other);
  auto source = std::make_unique<FakeSegments>(FakeSegments::Options{.capacity = 4 * kMiB});
  source_ = source.get();
  source_->SetLooks(absl::Milliseconds(5));
  ReusePolicy policy;
  policy.allow_internal_dependencies = false;
  auto streams = std::make_unique<SlowStreams>(&gpu);
  const SlowStreams& asked = *streams;
  engine_ = std::make_unique<Engine>(std::move(source), std::move(streams),
                                     PoolOptions{.reuse = policy, .wait = kLong});
  const Block block = engine_->Allocate(4 * kMiB, one).value();
  gpu.Use(block, one);
  ASSERT_TRUE(engine_->Free(block.data, one).ok());
  EXPECT_TRUE(engine_->Allocate(4 * kMiB, other).ok());
  EXPECT_GE(asked.asked(), 20);
  EXPECT_EQ(source_->waits().size(), 1u);
  EXPECT_EQ(gpu.violations(), 0u);
  ExpectInvariants();
  engine_.reset();
}

TEST_F(EngineWaitingTest, PressureWhoseTimeHasPassedIsIgnored) {
  Make({.grow_bytes = 2 * kMiB});
  Free(Allocate(2 * kMiB));
  engine_->GiveBack(2 * kMiB, absl::Now() - absl::Milliseconds(1));
  EXPECT_EQ(source_->leased_bytes(), 2 * kMiB);
  engine_->GiveBack(2 * kMiB, absl::Now() + kLong);
  EXPECT_EQ(source_->leased_bytes(), 0u);
}

TEST_F(EngineWaitingTest, FromARevocationOnNothingIsKept) {
  Make({.grow_bytes = 2 * kMiB});
  const Block used = Allocate(2 * kMiB);
  const Block small = Allocate(100);
  Free(Allocate(4 * kMiB));
  EXPECT_TRUE(engine_->HasAny({1}));
  EXPECT_FALSE(engine_->HasAny({1000}));
  EXPECT_FALSE(engine_->HasAny({}));
  engine_->GiveAll();
  EXPECT_EQ(source_->leased_bytes(), 4 * kMiB);
  Free(used);
  EXPECT_EQ(source_->leased_bytes(), 2 * kMiB);
  Free(small);
  EXPECT_EQ(source_->leased_bytes(), 0u);
  EXPECT_FALSE(engine_->HasAny({1}));
  // Until the threshold is set.
  engine_->SetReleaseThreshold(UINT64_MAX);
  Free(Allocate(2 * kMiB));
  EXPECT_EQ(source_->leased_bytes(), 2 * kMiB);
}

}  // namespace engine_waiting_test
}  // namespace gpumem::internal
