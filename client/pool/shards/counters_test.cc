// SPDX-License-Identifier: Apache-2.0
// What the shards count, and the tables of blocks: alone, and by several threads.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "client/pool/block_heap.h"
#include "client/pool/shards/pointer_tables.h"
#include "client/pool/shards/taken_bytes.h"
#include "client/pool/shards/thread_counter.h"
#include "common/bytes.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace counters_test {

using Taken = TakenBytes<4>;

// The model keeps each part's bytes, and the highest sum.
void ExpectAsInAModel(size_t shards, uint64_t most, uint64_t slack) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    Taken taken;
    taken.Use(shards);
    std::vector<uint64_t> parts(shards + 1);
    uint64_t sum = 0, peak = 0;
    for (int i = 0; i < 2'000; ++i) {
      const size_t part = random() % parts.size();
      if (random() % 2 == 0) {
        const uint64_t bytes = random() % most;
        taken.Add(part, bytes);
        parts[part] += bytes;
        sum += bytes;
      } else {
        const uint64_t bytes = random() % (parts[part] + 1);
        taken.Subtract(part, bytes);
        parts[part] -= bytes;
        sum -= bytes;
      }
      peak = std::max(peak, sum);
      if (random() % 500 == 0) {
        taken.ResetPeak();
        peak = sum;
      }
      ASSERT_EQ(taken.value(), sum);
      ASSERT_LE(taken.peak(), peak);
      ASSERT_GE(taken.peak() + slack * parts.size(), peak);
    }
  }
}

TEST(TakenBytesTest, WithOneShardThePeakIsExact) { ExpectAsInAModel(1, kMiB, 0); }

TEST(TakenBytesTest, WithSeveralItIsNotFarOff) { ExpectAsInAModel(4, 64 * kMiB, Taken::kSlack); }

TEST(TakenBytesTest, ThreadsLoseNothing) {
  Taken taken;
  taken.Use(4);
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&taken, thread] {
      for (int i = 0; i < 20'000; ++i) {
        taken.Add(i % 2 == 0 ? Taken::kLarge : Taken::PartOfShard(thread), 3);
        taken.Subtract(i % 2 == 0 ? Taken::kLarge : Taken::PartOfShard(thread), 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken.value(), 80'000u);
  EXPECT_EQ(taken.peak(), 80'000u);
}

TEST(ThreadCounterTest, IsZeroOnceAllHaveSubtracted) {
  ThreadCounter counter;
  EXPECT_TRUE(counter.IsZero());
  counter.Add(2);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 20; ++thread) {
    threads.emplace_back([&counter] {
      for (int i = 0; i < 1'000; ++i) {
        counter.Add(5);
        EXPECT_FALSE(counter.IsZero());
        counter.Subtract(5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(counter.IsZero());
  counter.Subtract(2);
  EXPECT_TRUE(counter.IsZero());
}

TEST(PointerTablesTest, RandomBlocksAsInAModel) {
  std::mt19937_64 random(7);
  PointerTables tables;
  std::unordered_map<uintptr_t, std::unique_ptr<Chunk>> model;
  std::vector<std::unique_ptr<PointerTable::Table>> old;
  for (int i = 0; i < 50'000; ++i) {
    const uintptr_t at = uintptr_t{1} << 40 | random() % 20'000 * 512 << random() % 12;
    if (const auto found = model.find(at); found != model.end()) {
      ASSERT_EQ(tables.Find(at), found->second.get());
      Chunk* const chunk = found->second.get();
      tables.Erase({&chunk, 1});
      model.erase(found);
      ASSERT_EQ(tables.FindLocked(at), nullptr);
    } else {
      ASSERT_EQ(tables.Find(at), nullptr);
      auto chunk = std::make_unique<Chunk>();
      chunk->at = at;
      old.push_back(tables.Insert(chunk.get()));
      model[at] = std::move(chunk);
    }
    ASSERT_EQ(tables.size(), model.size());
  }
  for (const auto& [at, chunk] : model) ASSERT_EQ(tables.FindLocked(at), chunk.get());
}

}  // namespace counters_test
}  // namespace gpumem::internal
