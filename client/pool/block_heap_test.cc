// SPDX-License-Identifier: Apache-2.0
// Random allocations and frees against a map of every unit of memory.
#include "client/pool/block_heap.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/pool/stream_order.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace block_heap_test {

constexpr uint64_t kUnit = 512;
constexpr uint64_t kRange = 16 * kUnit;  // of the ranges added and removed

// The expected state of the heap, unit by unit.
class Model {
 public:
  struct Unit {
    bool taken = false;
    const Timeline* owner = nullptr;  // of a free unit; null: clean
    uint64_t epoch = 0;
  };

  bool Has(uintptr_t at) const { return units_.contains(at); }
  void Add(uintptr_t at, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i += kUnit) units_[at + i] = {};
  }
  void Remove(uintptr_t at, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i += kUnit) units_.erase(at + i);
  }
  bool IsClean(uintptr_t at, uint64_t bytes) const {
    for (uint64_t i = 0; i < bytes; i += kUnit) {
      auto unit = units_.find(at + i);
      if (unit == units_.end() || unit->second.taken || unit->second.owner != nullptr) return false;
    }
    return true;
  }
  // Takes a chunk, and checks that all of it may be reused within these bounds.
  std::string Take(const Chunk& chunk, const std::map<const Timeline*, uint64_t>& bounds) {
    for (uint64_t i = 0; i < chunk.bytes; i += kUnit) {
      auto unit = units_.find(chunk.at + i);
      if (unit == units_.end()) return "took what is not there";
      if (unit->second.taken) return "took what is taken";
      const Timeline* owner = unit->second.owner;
      if (owner != nullptr && (!bounds.contains(owner) || unit->second.epoch > bounds.at(owner))) {
        return "took what another stream may still use";
      }
      unit->second.taken = true;
    }
    return "";
  }
  void Put(uintptr_t at, uint64_t bytes, const Timeline* owner, uint64_t epoch) {
    for (uint64_t i = 0; i < bytes; i += kUnit) units_[at + i] = {false, owner, epoch};
  }
  void Clean(const Timeline* owner, uint64_t epoch) {
    for (auto& [at, unit] : units_) {
      if (!unit.taken && unit.owner == owner && unit.epoch <= epoch) unit = {};
    }
  }
  // Returns the longest run that could be taken.
  uint64_t Longest(const std::map<const Timeline*, uint64_t>& bounds) const {
    uint64_t longest = 0, run = 0;
    uintptr_t expected = 0;
    for (const auto& [at, unit] : units_) {
      const bool usable =
          !unit.taken && (unit.owner == nullptr ||
                          (bounds.contains(unit.owner) && unit.epoch <= bounds.at(unit.owner)));
      run = usable ? (at == expected ? run : 0) + kUnit : 0;
      expected = at + kUnit;
      longest = std::max(longest, run);
    }
    return longest;
  }
  uint64_t free_bytes() const {
    return kUnit *
           static_cast<uint64_t>(std::count_if(units_.begin(), units_.end(), [](const auto& entry) {
             return !entry.second.taken;
           }));
  }

 private:
  std::map<uintptr_t, Unit> units_;
};

TEST(BlockHeapTest, RandomOperationsAgainstAMap) {
  uint64_t gathered = 0, refused = 0, removed = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    BlockHeap heap(/*join_ranges=*/true);
    Model model;
    Timeline streams[3];
    struct Taken {
      Chunk* chunk;
      uintptr_t at;
      uint64_t bytes;
    };
    std::vector<Taken> taken;
    uint64_t epoch = 1;
    for (int i = 0; i < 8000; ++i) {
      epoch += below(20) == 0 ? 1 : 0;
      Timeline* const stream = &streams[below(3)];
      const uint64_t die = below(100);
      std::string wrong;
      if (die < 4) {
        const uintptr_t at = (1 + below(96)) * kRange;  // often adjacent to another
        const uint64_t bytes = kRange;
        if (!model.Has(at)) {
          heap.AddRange(at, bytes);
          model.Add(at, bytes);
        }
      } else if (die < 8) {
        const uintptr_t at = (1 + below(96)) * kRange;
        const bool clean = model.IsClean(at, kRange);
        Chunk* around = nullptr;  // adjacent clean memory is one chunk
        for (Chunk* chunk : heap.CleanChunks(kRange)) {
          if (chunk->at <= at && at + kRange <= chunk->at + chunk->bytes) around = chunk;
        }
        ASSERT_TRUE(around == nullptr || clean);
        if (around != nullptr && below(3) == 0) {
          heap.RemoveRange(around, at, kRange);
          model.Remove(at, kRange);
          ++removed;
        }
      } else if (die < 55) {
        const uint64_t bytes = (1 + below(below(4) == 0 ? 150 : 12)) * kUnit;
        std::map<const Timeline*, uint64_t> bounds = {{stream, UINT64_MAX}};
        const bool all = below(2) == 0;
        for (Timeline& other : streams) {
          if (all) bounds[&other] = UINT64_MAX;
        }
        const auto bound = [&](const Timeline* of) -> uint64_t {
          return bounds.contains(of) ? bounds.at(of) : 0;
        };
        const bool possible = model.Longest(bounds) >= bytes;
        // A clean piece may have become another stream's with the chunk beside it.
        ASSERT_TRUE(!all || heap.HasRun(bytes, bound) == possible);
        Chunk* chunk = heap.Take(bytes, stream, bound);
        if (chunk == nullptr) {
          chunk = heap.Gather(bytes, bound);
          gathered += chunk != nullptr;
        }
        ASSERT_TRUE(!all || (chunk != nullptr) == possible) << "seed " << seed << ", step " << i;
        refused += chunk == nullptr;
        if (chunk != nullptr) {
          ASSERT_EQ(chunk->bytes, bytes);
          wrong = model.Take(*chunk, bounds);
          taken.push_back({chunk, chunk->at, chunk->bytes});
        }
      } else if (die < 92 && !taken.empty()) {
        const size_t chosen = below(taken.size());
        const Taken one = taken[chosen];
        taken.erase(taken.begin() + static_cast<ptrdiff_t>(chosen));
        ASSERT_EQ(one.chunk->at, one.at) << "a taken chunk became another";
        Timeline* const owner = below(8) == 0 ? nullptr : stream;
        heap.Put(one.chunk, owner, epoch);
        model.Put(one.at, one.bytes, owner, epoch);
      } else {
        // A joined chunk has the latest epoch of its parts, so this cleans all of the stream's.
        heap.Clean(stream, UINT64_MAX);
        model.Clean(stream, UINT64_MAX);
      }
      ASSERT_EQ(wrong, "") << "seed " << seed << ", step " << i;
      const absl::Status right = heap.CheckInvariants();
      ASSERT_TRUE(right.ok()) << right << ", seed " << seed << ", step " << i;
      ASSERT_EQ(heap.free_bytes(), model.free_bytes());
    }
  }
  EXPECT_GT(gathered, 100u);
  EXPECT_GT(refused, 500u);
  EXPECT_GT(removed, 50u);
}

TEST(BlockHeapTest, TakesTheSmallestThatFits) {
  BlockHeap heap(/*join_ranges=*/false);
  for (const uint64_t units : {8, 3, 5}) heap.AddRange(units * 4096, units * kUnit);
  const auto nobody = [](const Timeline*) -> uint64_t { return 0; };
  EXPECT_EQ(heap.Take(4 * kUnit, nullptr, nobody)->at, 5 * 4096u);
  EXPECT_EQ(heap.Take(3 * kUnit, nullptr, nobody)->at, 3 * 4096u);
  EXPECT_EQ(heap.Take(4 * kUnit, nullptr, nobody)->at, 8 * 4096u);
  EXPECT_EQ(heap.Take(5 * kUnit, nullptr, nobody), nullptr);
}

TEST(BlockHeapTest, GatherCutsAFirstChunkThatIsLargeEnough) {
  BlockHeap heap(/*join_ranges=*/true);
  Timeline one, other;
  heap.AddRange(kRange, 4 * kUnit, &one, 1);
  heap.AddRange(kRange + 4 * kUnit, 4 * kUnit, &other, 1);
  const Chunk* const taken =
      heap.Gather(2 * kUnit, [](const Timeline*) -> uint64_t { return UINT64_MAX; });
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->at, kRange);
  EXPECT_EQ(taken->bytes, 2 * kUnit);
  EXPECT_EQ(taken->freed_on, &one);
  EXPECT_EQ(heap.free_bytes(), 6 * kUnit);
  const absl::Status right = heap.CheckInvariants();
  EXPECT_TRUE(right.ok()) << right;
}

TEST(BlockHeapTest, ARunIsRemovedByAnyOfItsChunks) {
  BlockHeap heap(/*join_ranges=*/true);
  Timeline one, other;
  heap.AddRange(kRange, 2 * kUnit, &one, 1);
  Chunk* const second = heap.AddRange(kRange + 2 * kUnit, 3 * kUnit, &other, 2);
  const std::vector<BlockHeap::Piece> pieces = heap.RemoveRun(second);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].bytes, 2 * kUnit);
  EXPECT_EQ(pieces[0].freed_on, &one);
  EXPECT_EQ(pieces[1].bytes, 3 * kUnit);
  EXPECT_EQ(pieces[1].epoch, 2u);
  EXPECT_EQ(heap.total_bytes(), 0u);
  const absl::Status right = heap.CheckInvariants();
  EXPECT_TRUE(right.ok()) << right;
}

}  // namespace block_heap_test
}  // namespace gpumem::internal
