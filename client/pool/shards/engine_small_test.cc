// SPDX-License-Identifier: Apache-2.0
// Small blocks of many threads: shards and their ranges.
#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "client/pool/engine.h"
#include "client/pool/testing/engine_fixture.h"
#include "client/pool/testing/fake_segments.h"
#include "common/bytes.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace engine_small_test {

using EngineTest = EngineFixture;

TEST_F(EngineTest, AThreadUsesMemoryOfAnotherShardBeforeThePoolGrows) {
  Make({}, {.capacity = 2 * kMiB});
  const Block first = Allocate(4096);
  Free(Allocate(4096));
  for (int i = 0; i < 20; ++i) {
    std::thread([&] {
      const Block one = Allocate(4096), other = Allocate(64 << 10);
      Free(one);
      Free(other);
    }).join();
  }
  EXPECT_EQ(source_->leased_bytes(), 2 * kMiB);
  Free(first);
  EXPECT_TRUE(engine_->Trim(0).ok());
  EXPECT_EQ(source_->leased_bytes(), 0u);
}

TEST_F(EngineTest, RangesOfAllShardsServeALargeBlock) {
  Make({}, {.capacity = 32 * kMiB});
  std::atomic<int> holding{0}, over{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      const Block one = Allocate(kMiB), other = Allocate(kMiB);
      holding.fetch_add(1);
      holding.notify_all();
      for (int now = holding; now < 16; now = holding) holding.wait(now);
      Free(one);
      Free(other);
      holding.fetch_add(1);
      holding.notify_all();
      over.wait(0);  // its cache stays until then
    });
  }
  for (int now = holding; now < 32; now = holding) holding.wait(now);
  EXPECT_TRUE(engine_->Allocate(32 * kMiB, nullptr).ok());
  over = 1;
  over.notify_all();
  for (std::thread& thread : threads) thread.join();
}

// Threads allocate random sizes, and free blocks of each other, while memory is short.
TEST_F(EngineTest, RandomSmallBlocksOfManyThreadsNeverOverlap) {
  for (const uint64_t seed : {1, 2, 3}) {
    Make({}, {.capacity = 64 * kMiB});
    struct Held {
      Block block;
      Stream stream;
    };
    absl::Mutex mutex;
    std::vector<Held> held;
    std::map<uintptr_t, uint64_t> taken;  // by address: the bytes
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(100 * seed + t);
        for (int i = 0; i < 3000; ++i) {
          auto* const stream = reinterpret_cast<Stream>(4096 * (1 + random() % 3));
          if (random() % 2 == 0) {
            const uint64_t bytes = random() % ((random() % 8 == 0 ? 4 : 1) * kMiB) + 1;
            const auto block = engine_->Allocate(bytes, stream);
            if (!block.ok()) continue;  // memory is short
            const auto at = reinterpret_cast<uintptr_t>(block->data);
            absl::MutexLock lock(&mutex);
            const auto next = taken.lower_bound(at);
            if (block->bytes < bytes || (next != taken.end() && next->first < at + block->bytes) ||
                (next != taken.begin() && std::prev(next)->first + std::prev(next)->second > at)) {
              ++wrong;
            }
            taken[at] = block->bytes;
            held.push_back({*block, stream});
          } else {
            Held one{};
            {
              absl::MutexLock lock(&mutex);
              if (held.empty()) continue;
              std::swap(held[random() % held.size()], held.back());
              one = held.back();
              held.pop_back();
              taken.erase(reinterpret_cast<uintptr_t>(one.block.data));
            }
            if (!engine_->Free(one.block.data, one.stream).ok()) ++wrong;
          }
          if (i % 500 == 499 && !engine_->Trim(kMiB).ok()) ++wrong;
          if (i % 100 == 99 && !engine_->CheckInvariants().ok()) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Held& one : held) {
      EXPECT_TRUE(engine_->Free(one.block.data, one.stream).ok());
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(engine_->Stats().used_bytes, 0u);
    ExpectInvariants();
    EXPECT_TRUE(engine_->FreeAllBlocks(std::nullopt).ok());
    EXPECT_EQ(source_->leased_bytes(), 0u);
  }
}

}  // namespace engine_small_test
}  // namespace gpumem::internal
