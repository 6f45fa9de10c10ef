// SPDX-License-Identifier: Apache-2.0
// Thread caches of the pool's engine, ending threads, and many threads on plain memory.
#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "client/pool/engine.h"
#include "client/pool/size_class.h"
#include "client/pool/testing/engine_fixture.h"
#include "client/pool/testing/fake_segments.h"
#include "common/bytes.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace engine_threads_test {

using EngineTest = EngineFixture;

TEST_F(EngineTest, TryingDoesWhatThisThreadCanDoAlone) {
  Make({.wait = absl::InfiniteDuration()}, {.capacity = 16 * kMiB});
  EXPECT_EQ(engine_->TryAllocate(kMiB, nullptr).data, nullptr);
  EXPECT_EQ(engine_->Stats().reserved_bytes, 0u);
  const Block large = Allocate(4 * kMiB), small = Allocate(1000);
  for (const uint64_t bytes : {uint64_t{0}, kMiB, UINT64_MAX}) {
    EXPECT_EQ(engine_->TryAllocate(bytes, nullptr).data, nullptr);
  }
  EXPECT_EQ(engine_->Stats().out_of_memory, 0u);
  // Not for a stream that is new to this thread.
  void* const other = reinterpret_cast<void*>(0x1000);
  EXPECT_FALSE(engine_->TryFree(large.data, other));
  EXPECT_EQ(engine_->Stats().used_blocks, 2u);
  Free(Allocate(512));
  EXPECT_TRUE(engine_->TryFree(large.data, nullptr));
  EXPECT_TRUE(engine_->TryFree(small.data, nullptr));
  EXPECT_EQ(engine_->Stats().used_blocks, 0u);
  EXPECT_FALSE(engine_->TryFree(large.data, nullptr)) << "it is free";
  EXPECT_FALSE(engine_->TryFree(this, nullptr)) << "it is no block";
  EXPECT_EQ(engine_->TryAllocate(4 * kMiB, other).data, nullptr);
  EXPECT_EQ(engine_->TryAllocate(4 * kMiB, nullptr).data, large.data);
  EXPECT_EQ(engine_->TryAllocate(1000, nullptr).data, small.data);
  EXPECT_EQ(engine_->TryAllocate(1000, nullptr).data, nullptr);
  // If a cached block would have to leave the cache, TryFree leaves it to Free.
  engine_->SetReleaseThreshold(kMiB);
  EXPECT_FALSE(engine_->TryFree(large.data, nullptr));
  EXPECT_TRUE(engine_->TryFree(small.data, nullptr));
  Free(large);
}

TEST_F(EngineTest, TryingToFreeKeepsNoMoreThanFreeingDoes) {
  for (const uint64_t bytes : {uint64_t{1000}, 3 * kMiB}) {
    Make();
    std::vector<Block> blocks;
    for (int i = 0; i < 400; ++i) blocks.push_back(Allocate(bytes));
    Free(blocks.back());
    blocks.pop_back();
    uint64_t kept = 1;
    for (const Block& block : blocks) {
      if (engine_->TryFree(block.data, nullptr)) {
        ++kept;
      } else {
        Free(block);
      }
    }
    EXPECT_GE(kept, 8u);
    EXPECT_LT(kept, 400u) << "some had to go";
    EXPECT_EQ(engine_->Stats().used_blocks, 0u);
    ExpectInvariants();
  }
}

TEST_F(EngineTest, AThreadKeepsNoMoreSmallBytesOfAllClassesThanTheLimit) {
  Make();
  constexpr int kClasses = 12;  // a thread may keep 64 MiB of each, and keeps one block of each
  constexpr int kFirst = kSizeClasses - kClasses;
  std::vector<Block> blocks;
  for (int size_class = kFirst; size_class < kSizeClasses; ++size_class) {
    for (uint32_t i = 0; i < ThreadCache::Limit(size_class); ++i) {
      blocks.push_back(Allocate(ClassBytes(size_class)));
    }
  }
  int refused = 0;
  for (const Block& block : blocks) {
    if (engine_->TryFree(block.data, nullptr)) continue;
    ++refused;
    Free(block);
  }
  EXPECT_GT(refused, 0);
  EXPECT_EQ(engine_->Stats().used_blocks, 0u);
  uint64_t kept = 0;
  for (int size_class = kFirst; size_class < kSizeClasses; ++size_class) {
    while (engine_->TryAllocate(ClassBytes(size_class), nullptr).data != nullptr) {
      kept += ClassBytes(size_class);
    }
  }
  EXPECT_LE(kept, ThreadCache::kMostSmallBytes + kClasses * kMaxSmallBytes);
  EXPECT_GT(kept, ThreadCache::kMostSmallBytes / 2);
}

TEST_F(EngineTest, AKeptBlockServesASomewhatSmallerRequestIfTheHeapsHaveNone) {
  Make({}, {.capacity = 2 * kMiB});
  const Block first = Allocate(kMiB), second = Allocate(kMiB);
  Free(first);
  EXPECT_EQ(engine_->TryAllocate(900 << 10, nullptr).data, nullptr) << "the heaps may have one";
  const Block larger = Allocate(900 << 10);
  EXPECT_EQ(larger.data, first.data);
  EXPECT_EQ(larger.bytes, kMiB);
  Free(larger);
  const Block smaller = Allocate(700 << 10);
  EXPECT_LT(smaller.bytes, 800u << 10) << "one that is much larger is cut";
  Free(smaller);
  EXPECT_EQ(Allocate(kMiB).data, first.data) << "the rest has joined it";
  Free(first);
  Free(second);
}

TEST_F(EngineTest, WithAReleaseThresholdThreadsKeepNoLargeBlocks) {
  Make({.release_threshold_bytes = 0});
  Free(Allocate(64 * kMiB));
  EXPECT_EQ(source_->leased_bytes(), 0u);
  engine_->SetReleaseThreshold(UINT64_MAX);
  Free(Allocate(64 * kMiB));
  EXPECT_EQ(source_->leased_bytes(), 64 * kMiB);
}

TEST_F(EngineTest, CountsOutliveTheirThreads) {
  Make();
  for (int i = 0; i < 3; ++i) {
    std::thread([&] {
      for (int k = 0; k < 10; ++k) Free(Allocate(4096));
    }).join();
  }
  EXPECT_EQ(engine_->Stats().allocations, 30u);
  EXPECT_EQ(engine_->Stats().frees, 30u);
}

// Destructors of static objects may still call then.
TEST_F(EngineTest, AThreadWhoseCacheIsGoneAllocatesAndFreesWithoutOne) {
  Make();
  const Block kept = Allocate(4096);
  Free(kept);  // into this thread's cache
  struct AtEnd {
    std::function<void()> call;
    ~AtEnd() { call(); }
  };
  bool called = false;
  std::thread([&] {
    thread_local AtEnd at_end;  // older than the thread's caches: destroyed after them
    at_end.call = [&] {
      Free(Allocate(512));
      EXPECT_EQ(engine_->TryAllocate(512, nullptr).data, nullptr) << "no cache has it";
      EXPECT_EQ(engine_->Free(kept.data, nullptr).code(), absl::StatusCode::kInvalidArgument)
          << "it is free";
      called = true;
    };
    Free(Allocate(512));
  }).join();
  EXPECT_TRUE(called);
  EXPECT_EQ(engine_->Stats().frees, 3u);
  EXPECT_EQ(engine_->Stats().used_bytes, 0u);
}

TEST_F(EngineTest, WhatOneThreadKeepsAnotherGetsBeforeThePoolGrows) {
  Make({}, {.capacity = 4 * kMiB});
  std::thread([&] { Free(Allocate(4 * kMiB)); }).join();
  EXPECT_TRUE(engine_->Allocate(2 * kMiB, nullptr).ok()) << "its thread has ended";
  std::atomic<int> step{0};
  std::thread holder([&] {
    Free(Allocate(kMiB + 1));
    step = 1;
    step.notify_all();
    step.wait(1);
  });
  step.wait(0);
  EXPECT_TRUE(engine_->Allocate(2 * kMiB, nullptr).ok()) << "its thread lives";
  step = 2;
  step.notify_all();
  holder.join();
}

// Else a thread that needs the memory for something else would be refused.
TEST_F(EngineTest, ATrimWaitsForWhatOtherThreadsRelease) {
  std::atomic<int> step{0};
  std::atomic<bool> released{false};
  Make({}, {.unmapped = [&](uintptr_t, uint64_t) {
         if (step.exchange(1) != 0) return;
         step.notify_all();
         step.wait(1);
         // Few: the trim waits for a second at most, and the machine may be busy.
         for (int i = 0; i < 20; ++i) std::this_thread::yield();
         released = true;
       }});
  Free(Allocate(2 * kMiB));
  ASSERT_TRUE(engine_->Trim(4 * kMiB).ok());  // collects what this thread keeps
  std::thread giver([&] { engine_->GiveBack(2 * kMiB); });
  step.wait(0);
  step = 2;
  step.notify_all();
  EXPECT_TRUE(engine_->Trim(UINT64_MAX).ok());
  EXPECT_TRUE(released);
  giver.join();
}

TEST_F(EngineTest, ATrimWhoseReleaseFailsSaysSoWhileOthersRelease) {
  std::atomic<int> step{0};
  Make({.grow_bytes = 2 * kMiB}, {.unmapped = [&](uintptr_t, uint64_t) {
         if (step.exchange(1) != 0) return;
         step.notify_all();
         step.wait(1);
       }});
  const Block first = Allocate(2 * kMiB), second = Allocate(2 * kMiB);
  Free(first);
  Free(second);
  ASSERT_TRUE(engine_->Trim(4 * kMiB).ok());  // collects what this thread keeps
  int shrinks = 0;                            // counted under the engine's lock
  engine_->SetHook([&](const PoolEvent& event) {
    if (event.what != PoolEvent::What::kShrink || ++shrinks != 2) return;
    step = 2;  // the trim has seen what the other thread is releasing
    step.notify_all();
  });
  source_->SetUnavailable(true);
  std::thread giver([&] { engine_->GiveBack(2 * kMiB); });
  step.wait(0);
  EXPECT_EQ(engine_->Trim(0).status().code(), absl::StatusCode::kUnavailable);
  giver.join();
  EXPECT_EQ(engine_->Stats().reserved_bytes, 0u);
}

// Each thread fills its blocks with its mark and checks it before it frees them.
TEST_F(EngineTest, ThreadsNeverShareABlock) {
  Make({.limit_bytes = 512 * kMiB}, {.places = false, .memory = true});
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      struct Held {
        Block block;
        uint64_t mark;
        Stream stream;
      };
      std::vector<Held> held;
      for (int i = 0; i < 4000; ++i) {
        // Separate streams, and one shared stream.
        auto* const stream = random() % 2 == 0 ? nullptr : reinterpret_cast<Stream>(16 * (t + 1));
        if (held.size() < 20 && random() % 2 == 0) {
          const uint64_t sizes[] = {random() % 2048 + 1, random() % (64 << 10) + 1,
                                    random() % (2 << 20) + 1};
          auto block = engine_->Allocate(sizes[random() % 3], stream);
          if (!block.ok()) {
            ++wrong;
            continue;
          }
          const uint64_t mark = random();
          for (uint64_t at = 0; at + 8 <= block->bytes; at += 4096) {
            std::memcpy(static_cast<char*>(block->data) + at, &mark, 8);
          }
          held.push_back({*block, mark, stream});
        } else if (!held.empty()) {
          const size_t chosen = random() % held.size();
          const Held one = held[chosen];
          held[chosen] = held.back();
          held.pop_back();
          for (uint64_t at = 0; at + 8 <= one.block.bytes; at += 4096) {
            uint64_t found = 0;
            std::memcpy(&found, static_cast<char*>(one.block.data) + at, 8);
            if (found != one.mark) ++wrong;
          }
          if (!engine_->Free(one.block.data, one.stream).ok()) ++wrong;
        }
        if (i % 1000 == 999 && !engine_->Trim(kMiB).ok()) ++wrong;
      }
      for (const Held& one : held) {
        if (!engine_->Free(one.block.data, one.stream).ok()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(engine_->Stats().used_bytes, 0u);
  EXPECT_TRUE(engine_->FreeAllBlocks(std::nullopt).ok());
  EXPECT_EQ(source_->leased_bytes(), 0u);
}

}  // namespace engine_threads_test
}  // namespace gpumem::internal
