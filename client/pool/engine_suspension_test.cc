// SPDX-License-Identifier: Apache-2.0
// A pool's engine that is suspended and resumed.
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "client/pool/testing/engine_fixture.h"
#include "client/pool/testing/fake_gpu.h"
#include "common/bytes.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace engine_suspension_test {

using absl::StatusCode;

class EngineSuspensionTest : public EngineFixture {
 protected:
  void TearDown() override {
    EngineFixture::TearDown();
    if (engine_ != nullptr) {
      EXPECT_EQ(source_->violations(), 0);
    }
  }
  absl::Status Suspend() { return engine_->Suspend({}); }
  absl::Status Resume() { return engine_->Resume({}); }
  StatusCode TryToAllocate(uint64_t bytes) {
    EXPECT_EQ(engine_->TryAllocate(bytes, nullptr).data, nullptr);
    EXPECT_EQ(engine_->AllocateSynchronized(bytes).status().code(),
              engine_->Allocate(bytes, nullptr).status().code());
    return engine_->Allocate(bytes, nullptr).status().code();
  }
};

TEST_F(EngineSuspensionTest, ContentsAndAddressesStay) {
  Make({}, {.memory = true});
  std::vector<Block> blocks;
  for (const uint64_t bytes : {uint64_t{100}, kMiB, 9 * kMiB}) {
    blocks.push_back(Allocate(bytes));
    memset(blocks.back().data, static_cast<int>(blocks.size()), blocks.back().bytes);
  }
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(Suspend(), absl::OkStatus());
    EXPECT_TRUE(engine_->suspended());
    EXPECT_EQ(source_->suspended(), source_->segments());
    ASSERT_EQ(Resume(), absl::OkStatus());
    EXPECT_FALSE(engine_->suspended());
    EXPECT_EQ(source_->suspended(), 0u);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto* const bytes = static_cast<const char*>(blocks[i].data);
      EXPECT_EQ(bytes[0], static_cast<char>(i + 1));
      EXPECT_EQ(bytes[blocks[i].bytes - 1], static_cast<char>(i + 1));
    }
  }
  Free(blocks[0]);
  EXPECT_EQ(Allocate(100).data, blocks[0].data) << "the caches work again";
}

TEST_F(EngineSuspensionTest, OnlyMemoryInUseIsMoved) {
  Make({.grow_bytes = 2 * kMiB});
  const Block used = Allocate(2 * kMiB);
  std::vector<Block> freed;
  for (int i = 0; i < 8; ++i) freed.push_back(Allocate(2 * kMiB));
  for (const Block& block : freed) Free(block);  // into this thread's cache
  ASSERT_EQ(Suspend(), absl::OkStatus());
  EXPECT_EQ(source_->leased_bytes(), 2 * kMiB);
  EXPECT_EQ(source_->suspended(), 1u);
  ASSERT_EQ(Resume(), absl::OkStatus());
  Free(used);
}

TEST_F(EngineSuspensionTest, WithoutBlocksThereIsNothingToMove) {
  Make();
  Free(Allocate(kMiB));
  source_->SetDuring([] { return absl::InternalError("it was asked"); });
  bool called = false;
  const auto quiesce = [&] {
    called = true;
    return absl::OkStatus();
  };
  ASSERT_EQ(engine_->Suspend({.quiesce = quiesce}), absl::OkStatus());
  EXPECT_FALSE(called);
  EXPECT_EQ(TryToAllocate(kMiB), StatusCode::kFailedPrecondition);
  ASSERT_EQ(Resume(), absl::OkStatus());
  Free(Allocate(kMiB));
}

TEST_F(EngineSuspensionTest, BothHaveAnOrder) {
  Make();
  EXPECT_EQ(Resume().code(), StatusCode::kFailedPrecondition);
  Allocate(kMiB);
  ASSERT_EQ(Suspend(), absl::OkStatus());
  EXPECT_EQ(Suspend().code(), StatusCode::kFailedPrecondition);
  ASSERT_EQ(Resume(), absl::OkStatus());
  EXPECT_EQ(Resume().code(), StatusCode::kFailedPrecondition);
  // From another thread meanwhile.
  source_->SetDuring([this] {
    EXPECT_TRUE(engine_->suspended());
    EXPECT_EQ(Suspend().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(Resume().code(), StatusCode::kFailedPrecondition);
    return absl::OkStatus();
  });
  ASSERT_EQ(Suspend(), absl::OkStatus());
  ASSERT_EQ(Resume(), absl::OkStatus());
}

TEST_F(EngineSuspensionTest, NothingIsAllocatedMeanwhile) {
  for (const bool caches : {true, false}) {
    Make({.thread_caches = caches});
    const Block block = Allocate(kMiB);
    Free(Allocate(100));  // 100 bytes are in the cache
    source_->SetDuring([this] {
      EXPECT_EQ(TryToAllocate(100), StatusCode::kFailedPrecondition);
      EXPECT_EQ(engine_->Trim(0).value(), 0u);
      return absl::OkStatus();
    });
    ASSERT_EQ(Suspend(), absl::OkStatus());
    EXPECT_EQ(TryToAllocate(100), StatusCode::kFailedPrecondition);
    EXPECT_EQ(TryToAllocate(64 * kMiB), StatusCode::kFailedPrecondition);
    EXPECT_EQ(engine_->Share(block.data).status().code(), StatusCode::kFailedPrecondition);
    EXPECT_TRUE(engine_->Find(block.data).ok());
    EXPECT_EQ(source_->suspended(), source_->segments());
    ASSERT_EQ(Resume(), absl::OkStatus());
    EXPECT_TRUE(engine_->Share(block.data).ok());
    Free(Allocate(100));
    Free(block);
  }
}

TEST_F(EngineSuspensionTest, FreedMemoryServesNoOtherBlockBeforeTheEnd) {
  Make({.grow_bytes = 2 * kMiB}, {.memory = true});
  const Block small = Allocate(100);
  const Block first = Allocate(4 * kMiB);
  const Block second = Allocate(4 * kMiB);
  Block third = Allocate(4 * kMiB);
  std::memset(third.data, 3, third.bytes);
  source_->SetDuring([&] {
    Free(first);
    return absl::OkStatus();
  });
  ASSERT_EQ(Suspend(), absl::OkStatus());
  source_->SetDuring({});
  Free(second);
  Free(small);
  EXPECT_FALSE(engine_->Free(second.data, nullptr).ok()) << "freed already";
  EXPECT_EQ(engine_->Stats().used_bytes, third.bytes);
  EXPECT_EQ(TryToAllocate(4 * kMiB), StatusCode::kFailedPrecondition);
  ExpectInvariants();
  ASSERT_EQ(Resume(), absl::OkStatus());
  EXPECT_EQ(source_->leased_bytes(), 4 * kMiB) << "the others need not come back";
  EXPECT_EQ(static_cast<const char*>(third.data)[third.bytes - 1], 3);
  std::memset(Allocate(4 * kMiB).data, 4, 4 * kMiB);
}

TEST_F(EngineSuspensionTest, TheThresholdHoldsForFreesMeanwhile) {
  Make({.release_threshold_bytes = 0, .grow_bytes = 2 * kMiB});
  const Block stays = Allocate(2 * kMiB);
  const Block goes = Allocate(2 * kMiB);
  const Block late = Allocate(2 * kMiB);
  ASSERT_EQ(Suspend(), absl::OkStatus());
  const uint64_t before = source_->leased_bytes();
  Free(goes);
  EXPECT_LT(source_->leased_bytes(), before) << "its bytes are dropped";
  source_->SetDuring([&] {
    Free(late);
    return absl::OkStatus();
  });
  ASSERT_EQ(Resume(), absl::OkStatus());
  EXPECT_EQ(source_->leased_bytes(), stays.bytes);
}

TEST_F(EngineSuspensionTest, ARefusalChangesNothing) {
  Make();
  const Block block = Allocate(4 * kMiB);
  source_->SetDuring([] { return absl::ResourceExhaustedError("the tier is full"); });
  EXPECT_EQ(Suspend().code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(engine_->suspended());
  source_->SetDuring({});
  EXPECT_EQ(engine_->Suspend({.quiesce = [] { return absl::AbortedError("not now"); }}),
            absl::AbortedError("not now"));
  EXPECT_FALSE(engine_->suspended());
  Free(Allocate(100));
  ASSERT_EQ(Suspend(), absl::OkStatus());
  source_->SetDuring([] { return absl::ResourceExhaustedError("the device is full"); });
  EXPECT_EQ(Resume().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine_->suspended());
  EXPECT_EQ(TryToAllocate(100), StatusCode::kFailedPrecondition);
  source_->SetDuring({});
  ASSERT_EQ(Resume(), absl::OkStatus());
  Free(block);
}

TEST_F(EngineSuspensionTest, AfterARefusalThatIsNotUndoneItIsSuspended) {
  Make({.grow_bytes = 2 * kMiB});
  const Block block = Allocate(6 * kMiB);
  source_->SetDuring([] { return absl::UnavailableError("broken"); }, /*partly=*/true);
  EXPECT_EQ(Suspend().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(engine_->suspended());
  EXPECT_EQ(TryToAllocate(100), StatusCode::kFailedPrecondition);
  source_->SetDuring({});
  ASSERT_EQ(Resume(), absl::OkStatus());
  EXPECT_EQ(source_->suspended(), 0u);
  Free(block);
}

TEST_F(EngineSuspensionTest, AnAllocateThatWaitsIsEnded) {
  Make({.wait = absl::InfiniteDuration()}, {.capacity = 8 * kMiB});
  const Block held = Allocate(8 * kMiB);
  std::thread waiter([this] {
    EXPECT_EQ(engine_->Allocate(4 * kMiB, nullptr).status().code(),
              StatusCode::kFailedPrecondition);
  });
  source_->AwaitWaiters(1);
  ASSERT_EQ(Suspend(), absl::OkStatus());
  waiter.join();
  EXPECT_EQ(source_->leased_bytes(), 8 * kMiB);
  ASSERT_EQ(Resume(), absl::OkStatus());
  Free(held);
}

TEST_F(EngineSuspensionTest, AnAllocateThatIsAboutToWaitIsEnded) {
  Make({.wait = absl::InfiniteDuration()}, {.capacity = 8 * kMiB});
  const Block held = Allocate(8 * kMiB);
  engine_->SetOutOfMemoryCallback([this](uint64_t) {
    EXPECT_EQ(Suspend(), absl::OkStatus());
    return false;
  });
  EXPECT_EQ(engine_->Allocate(4 * kMiB, nullptr).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(source_->waits().empty());
  ASSERT_EQ(Resume(), absl::OkStatus());
  Free(held);
}

// The daemon grants the memory at the moment when the pool is suspended.
TEST_F(EngineSuspensionTest, MemoryThatIsGrantedTooLateGoesBack) {
  Make({.wait = absl::InfiniteDuration()}, {.capacity = 8 * kMiB});
  const Block held = Allocate(8 * kMiB);
  source_->SetGrantsTooLate();
  std::thread waiter([this] {
    EXPECT_EQ(engine_->Allocate(4 * kMiB, nullptr).status().code(),
              StatusCode::kFailedPrecondition);
  });
  source_->AwaitWaiters(1);
  ASSERT_EQ(Suspend(), absl::OkStatus());
  waiter.join();
  EXPECT_EQ(source_->suspended(), source_->segments());
  ASSERT_EQ(Resume(), absl::OkStatus());
  Free(held);
}

TEST_F(EngineSuspensionTest, ItIsDestroyedWhileItIsSuspended) {
  Make();
  Allocate(4 * kMiB);
  const Block freed = Allocate(4 * kMiB);
  ASSERT_EQ(Suspend(), absl::OkStatus());
  Free(freed);
  std::thread([this] { EXPECT_FALSE(engine_->Allocate(kMiB, nullptr).ok()); }).join();
  engine_.reset();
}

// Frees with pending work are waited for, so that their memory goes back and need not move.
TEST_F(EngineSuspensionTest, TheWorkOfAllStreamsIsAwaited) {
  FakeGpu gpu(1);
  auto source = std::make_unique<FakeSegments>(FakeSegments::Options{
      .unmapped = [&gpu](uintptr_t at, uint64_t bytes) { gpu.Unmap(at, bytes); }});
  source_ = source.get();
  engine_ = std::make_unique<Engine>(std::move(source), std::make_unique<FakeStreams>(&gpu),
                                     PoolOptions{.grow_bytes = 2 * kMiB});
  const Block used = engine_->Allocate(2 * kMiB, nullptr).value();
  for (const uintptr_t name : {0x10, 0x20, 0x30}) {
    auto* const stream = reinterpret_cast<Stream>(name);
    gpu.MakeNonBlocking(stream);
    const Block block = engine_->Allocate(2 * kMiB, stream).value();
    gpu.Use(block, stream);
    ASSERT_EQ(engine_->Free(block.data, stream), absl::OkStatus());
  }
  ASSERT_EQ(Suspend(), absl::OkStatus());
  EXPECT_EQ(source_->leased_bytes(), 2 * kMiB);
  EXPECT_EQ(gpu.violations(), 0u);
  ASSERT_EQ(Resume(), absl::OkStatus());
  Free(used);
  gpu.Finish();
  ExpectInvariants();
  engine_.reset();
}

// Threads allocate and free by chance while another one suspends and resumes. The fake
// counts segments that are released while they are on their way.
TEST_F(EngineSuspensionTest, ThreadsGoOnMeanwhile) {
  Make({.release_threshold_bytes = 8 * kMiB, .grow_bytes = 2 * kMiB});
  std::atomic<bool> ends = false;
  std::atomic<int> allocated = 0, refused = 0;
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      std::vector<Block> held;
      while (!ends || !held.empty()) {
        if (!ends && held.size() < 20 && random() % 2 == 0) {
          const auto block = engine_->Allocate(1 + random() % (3 * kMiB), nullptr);
          if (block.ok()) {
            held.push_back(*block);
            ++allocated;
          } else {
            EXPECT_EQ(block.status().code(), StatusCode::kFailedPrecondition) << block.status();
            ++refused;
          }
        } else if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          Free(held.back());
          held.pop_back();
        }
        if (random() % 64 == 0) {
          EXPECT_TRUE(engine_->Trim(0).ok());
        }
        if (random() % 64 == 0) engine_->GiveBack(kMiB);
      }
    });
  }
  for (int round = 0; round < 200 || allocated < 100 || refused < 100; ++round) {
    ASSERT_EQ(Suspend(), absl::OkStatus());
    ExpectInvariants();
    EXPECT_EQ(source_->violations(), 0);
    ASSERT_EQ(Resume(), absl::OkStatus());
    const int seen = allocated;
    while (allocated < seen + 3) std::this_thread::yield();
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(engine_->Stats().used_bytes, 0u);
  EXPECT_EQ(source_->suspended(), 0u);
}

}  // namespace engine_suspension_test
}  // namespace gpumem::internal
