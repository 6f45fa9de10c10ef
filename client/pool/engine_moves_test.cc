// SPDX-License-Identifier: Apache-2.0
// Free segments that are moved to form a larger block.
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "client/pool/testing/engine_fixture.h"
#include "client/pool/testing/fake_segments.h"
#include "common/bytes.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace engine_moves_test {

// Pieces of 2 MiB, a segment each; every second one is then free.
class MovesTest : public EngineFixture {
 protected:
  void Fragment(int pieces = 8) {
    Make({.grow_bytes = 2 * kMiB, .thread_caches = false});
    for (int i = 0; i < pieces; ++i) blocks_.push_back(Allocate(2 * kMiB));
    for (int i = 0; i < pieces; i += 2) Free(blocks_[i]);
    reserved_ = source_->leased_bytes();
  }
  void ExpectMoves(uint64_t moves, uint64_t leased) {
    EXPECT_EQ(engine_->Stats().moves, moves);
    EXPECT_EQ(source_->leased_bytes(), reserved_ + leased);
    for (size_t i = 1; i < blocks_.size(); i += 2) {
      EXPECT_EQ(engine_->Find(blocks_[i].data)->bytes, 2 * kMiB) << "what is used stays";
    }
    ExpectInvariants();
  }

  std::vector<Block> blocks_;
  uint64_t reserved_ = 0;
};

TEST_F(MovesTest, WhatIsLeasedIntoAHoleFitsItWhenTheHoleBehindHasBeenFilled) {
  Make({.grow_bytes = 32 * kMiB, .thread_caches = false});
  const Block to_move = Allocate(32 * kMiB);
  Allocate(32 * kMiB);  // stays in use
  EXPECT_TRUE(engine_->SetLimit(72 * kMiB).ok());
  const Block small = Allocate(8 * kMiB);
  EXPECT_TRUE(engine_->SetLimit(UINT64_MAX).ok());
  const Block large = Allocate(64 * kMiB);
  Free(small);
  EXPECT_EQ(engine_->Trim(0).value(), 8 * kMiB);
  Free(large);
  Free(to_move);
  // The segment is too large for the hole before the free memory, and fills the hole behind it.
  Allocate(100 * kMiB);
  EXPECT_EQ(engine_->Stats().moves, 1u);
  EXPECT_EQ(source_->leased_bytes(), 136 * kMiB);
}

TEST_F(MovesTest, ABlockLargerThanAnyFreeRunIsServedWithoutGrowing) {
  Fragment();
  source_->SetUnavailable(true);  // the daemon must not be called
  const Block large = Allocate(8 * kMiB);
  ExpectMoves(4, 0);
  Free(large);
  EXPECT_EQ(Allocate(8 * kMiB).data, large.data);
  ExpectMoves(4, 0);
}

TEST_F(MovesTest, WhatIsMissingBesideFreeMemoryIsMovedThere) {
  Fragment();
  Free(blocks_[7]);
  const Block large = Allocate(8 * kMiB);
  EXPECT_EQ(large.data, blocks_[6].data) << "where 4 MiB are missing";
  blocks_.resize(7);
  ExpectMoves(2, 0);
}

TEST_F(MovesTest, HolesAreFilled) {
  Fragment();
  const Block large = Allocate(8 * kMiB);  // leaves holes at 0, 2, 4 and 6
  for (const int i : {1, 3, 5}) Free(blocks_[i]);
  Free(large);
  blocks_ = {blocks_[6], blocks_[7]};
  const Block larger = Allocate(13 * kMiB);
  EXPECT_EQ(engine_->Stats().reserved_bytes, 16 * kMiB);
  EXPECT_GT(engine_->Stats().moves, 4u);
  Free(larger);
  ExpectMoves(engine_->Stats().moves, 0);
}

TEST_F(MovesTest, PartIsMovedAndPartIsLeased) {
  Fragment(4);
  Allocate(8 * kMiB);
  ExpectMoves(2, 4 * kMiB);
}

// Gives all of 16 MiB back, and leases 6 again, of which the middle ones are free.
class NeededMoreTest : public MovesTest {
 protected:
  void SetUp() override {
    Fragment();
    for (int i = 1; i < 8; i += 2) Free(blocks_[i]);
    EXPECT_EQ(engine_->Trim(0).value(), 16 * kMiB);
    blocks_ = {};
    for (int i = 0; i < 3; ++i) blocks_.push_back(Allocate(2 * kMiB));
    std::swap(blocks_[0], blocks_[1]);
    Free(blocks_[0]);
    reserved_ = source_->leased_bytes();
  }
};

TEST_F(NeededMoreTest, ItLeasesUpToWhatItOnceNeeded) {
  Allocate(4 * kMiB);
  ExpectMoves(0, 4 * kMiB);
}

TEST_F(NeededMoreTest, AboveItsLimitItMoves) {
  ASSERT_TRUE(engine_->SetLimit(8 * kMiB).ok());
  Allocate(4 * kMiB);
  ExpectMoves(1, 2 * kMiB);
}

TEST_F(NeededMoreTest, WhereTheDaemonDeniesItMoves) {
  source_->SetCapacity(8 * kMiB);
  Allocate(4 * kMiB);
  ExpectMoves(1, 2 * kMiB);
}

TEST_F(MovesTest, WhereTheDriverRefusesItLeases) {
  Fragment();
  source_->SetMovesLeft(0);
  const Block large = Allocate(8 * kMiB);
  ExpectMoves(0, 8 * kMiB);
  source_->SetMovesLeft(UINT64_MAX);
  Allocate(8 * kMiB);
  ExpectMoves(4, 8 * kMiB);
  Free(large);
}

// For each number of successful moves: into the end of a run, and into several holes.
TEST_F(MovesTest, WhereTheDriverRefusesOneThePoolIsRight) {
  for (uint64_t left = 0; left < 4; ++left) {
    blocks_ = {};
    Fragment(16);
    const Block large = Allocate(16 * kMiB);
    for (const int i : {1, 3, 5, 7}) Free(blocks_[i]);
    Free(large);
    blocks_.erase(blocks_.begin(), blocks_.begin() + 8);
    const Block held = Allocate(13 * kMiB);
    source_->SetMovesLeft(left);
    Allocate(11 * kMiB);
    const absl::Status right = engine_->CheckInvariants();
    EXPECT_TRUE(right.ok()) << right;
    Free(held);
    for (size_t i = 1; i < blocks_.size(); i += 2) {
      EXPECT_EQ(engine_->Find(blocks_[i].data)->bytes, 2 * kMiB);
    }
    EXPECT_EQ(engine_->Stats().reserved_bytes, source_->leased_bytes());
  }
}

TEST_F(MovesTest, WhereTheAddressIsTakenItLeasesElsewhere) {
  Fragment();
  source_->TakeAddress(reinterpret_cast<uintptr_t>(blocks_[7].data) + 2 * kMiB);
  Allocate(8 * kMiB);
  ExpectMoves(0, 8 * kMiB);
}

TEST_F(MovesTest, TheHookSeesASegmentGoAndCome) {
  Fragment();
  std::vector<PoolEvent> events;
  engine_->SetHook([&](const PoolEvent& event) { events.push_back(event); });
  const Block large = Allocate(8 * kMiB);
  engine_->SetHook(nullptr);
  ASSERT_EQ(events.size(), 9u);
  EXPECT_EQ(events[0].what, PoolEvent::What::kShrink);
  EXPECT_EQ(events[0].data, blocks_[0].data);
  EXPECT_EQ(events[1].what, PoolEvent::What::kGrow);
  EXPECT_EQ(events[1].data, large.data);
}

TEST_F(MovesTest, MuchComesInSegmentsThatCanBeMovedOneByOne) {
  Make();
  Allocate(uint64_t{1} << 30);
  EXPECT_EQ(engine_->Stats().segments, 16u);
  Allocate(uint64_t{64} << 30);
  EXPECT_LE(engine_->Stats().segments, 16u + 128u) << "of one call to the daemon";
}

TEST_F(MovesTest, ABurstLeasesAheadUntilOthersLackMemory) {
  Make({.thread_caches = false});
  const auto grow = [this] {
    const uint64_t before = source_->leased_bytes();
    while (source_->leased_bytes() == before) Allocate(32 * kMiB);
    return source_->leased_bytes() - before;
  };
  while (source_->leased_bytes() < 5 * kGiB) grow();
  EXPECT_GT(grow(), 256 * kMiB);
  EXPECT_LE(source_->leased_bytes(), engine_->Stats().used_bytes * 12 / 11);
  engine_->GiveBack(kGiB);
  EXPECT_LT(engine_->Stats().free_bytes, 128 * kMiB) << "what was leased ahead is given back";
  EXPECT_LT(grow(), 256 * kMiB);
}

TEST_F(MovesTest, OfOtherKindsNothingIsMoved) {
  Make({.grow_bytes = 2 * kMiB, .thread_caches = false}, {.places = false});
  const Block first = Allocate(2 * kMiB), second = Allocate(2 * kMiB);
  Free(first);
  Allocate(4 * kMiB);
  EXPECT_EQ(engine_->Stats().moves, 0u);
  EXPECT_EQ(source_->leased_bytes(), 8 * kMiB);
  Free(second);
}

// Threads that allocate, free and trim while segments move.
TEST_F(MovesTest, ThreadsNeverShareABlock) {
  Make({.grow_bytes = 2 * kMiB}, {.capacity = 128 * kMiB});
  constexpr int kThreads = 4;
  absl::Mutex mutex;
  std::map<uintptr_t, uintptr_t> used;  // ends by begins
  int wrong = 0;
  const auto take = [&](const Block& block) {
    const auto at = reinterpret_cast<uintptr_t>(block.data);
    absl::MutexLock lock(&mutex);
    const auto after = used.lower_bound(at);
    const bool shared = (after != used.end() && after->first < at + block.bytes) ||
                        (after != used.begin() && std::prev(after)->second > at);
    wrong += shared ? 1 : 0;
    used[at] = at + block.bytes;
  };
  const auto give = [&](const Block& block) {
    {
      absl::MutexLock lock(&mutex);
      used.erase(reinterpret_cast<uintptr_t>(block.data));
    }
    return engine_->Free(block.data, nullptr).ok() ? 0 : 1;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<Block> held;
      int bad = 0;
      for (int i = 0; i < 20'000; ++i) {
        if (held.size() < 6 && random() % 2 == 0) {
          auto block = engine_->Allocate(random() % (8 * kMiB) + 1, nullptr);
          if (!block.ok()) {  // memory may be exhausted
            bad += absl::IsResourceExhausted(block.status()) ? 0 : 1;
            continue;
          }
          take(*block);
          held.push_back(*block);
        } else if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          bad += give(held.back());
          held.pop_back();
        }
        if (i % 500 == 499 && !engine_->Trim(8 * kMiB).ok()) ++bad;
      }
      for (const Block& block : held) bad += give(block);
      absl::MutexLock lock(&mutex);
      wrong += bad;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(engine_->Stats().moves, 10u);
  EXPECT_EQ(engine_->Stats().used_bytes, 0u);
  EXPECT_TRUE(engine_->FreeAllBlocks(std::nullopt).ok());
  EXPECT_EQ(source_->leased_bytes(), 0u);
}

}  // namespace engine_moves_test
}  // namespace gpumem::internal
