// SPDX-License-Identifier: Apache-2.0
#include "daemon/tier/extents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace gpumemd {
namespace extents_test {

using absl::StatusCode;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kGranule = 16;

TierExtent At(uint64_t granule, uint64_t granules) {
  return {.offset = granule * kGranule, .bytes = granules * kGranule};
}

std::vector<TierExtent> Take(Extents& extents, uint64_t granules) {
  std::optional<std::vector<TierExtent>> taken = extents.Take(granules * kGranule);
  EXPECT_TRUE(taken.has_value());
  return taken.value_or(std::vector<TierExtent>());
}

TEST(Extents, OfNothingHaveNothing) {
  Extents extents(0, kGranule);
  EXPECT_EQ(extents.free_bytes(), 0u);
  EXPECT_FALSE(extents.Take(kGranule).has_value());
}

TEST(Extents, TakeTheSmallestRangeThatHoldsAll) {
  Extents extents(20 * kGranule, kGranule);
  ASSERT_TRUE(extents.TakeExactly({At(8, 1), At(12, 1)}).ok());
  // Free: 8 granules from 0, 3 from 9, 7 from 13.
  EXPECT_THAT(Take(extents, 2), ElementsAre(At(9, 2)));
  EXPECT_THAT(Take(extents, 7), ElementsAre(At(13, 7)));
  EXPECT_THAT(Take(extents, 8), ElementsAre(At(0, 8)));
  EXPECT_EQ(extents.free_bytes(), kGranule);
}

TEST(Extents, TakeAsFewRangesAsHoldAll) {
  Extents extents(20 * kGranule, kGranule);
  ASSERT_TRUE(extents.TakeExactly({At(8, 1), At(12, 1)}).ok());
  // The largest first, then the smallest that holds the rest.
  EXPECT_THAT(Take(extents, 11), ElementsAre(At(0, 8), At(9, 3)));
  EXPECT_FALSE(extents.Take(8 * kGranule).has_value());
  EXPECT_THAT(Take(extents, 7), ElementsAre(At(13, 7)));
}

TEST(Extents, GivenOnesMergeWithTheirNeighbours) {
  Extents extents(8 * kGranule, kGranule);
  EXPECT_THAT(Take(extents, 8), ElementsAre(At(0, 8)));
  extents.Give({At(2, 2)});
  extents.Give({At(6, 2), At(4, 1)});
  EXPECT_THAT(extents.FreeRanges(), ElementsAre(At(2, 3), At(6, 2)));
  extents.Give({At(5, 1)});
  EXPECT_THAT(extents.FreeRanges(), ElementsAre(At(2, 6)));
  extents.Give({At(0, 2)});
  EXPECT_THAT(extents.FreeRanges(), ElementsAre(At(0, 8)));
}

TEST(Extents, TakeExactlyRefusesWhatIsNotThere) {
  Extents extents(8 * kGranule, kGranule);
  ASSERT_TRUE(extents.TakeExactly({At(2, 2)}).ok());
  const std::vector<std::vector<TierExtent>> wrong = {
      {At(0, 0)},
      {{.offset = 1, .bytes = kGranule}},
      {{.offset = 0, .bytes = kGranule + 1}},
      {At(8, 1)},
      {At(7, 2)},
      {{.offset = kGranule, .bytes = ~uint64_t{0} - kGranule + 1}},
      {At(0, 3)},
      {At(3, 1)},
      {At(3, 3)},
      {At(0, 1), At(5, 1), At(0, 1)},
  };
  for (const std::vector<TierExtent>& each : wrong) {
    EXPECT_EQ(extents.TakeExactly(each).code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(extents.FreeRanges(), ElementsAre(At(0, 2), At(4, 4)));
  }
  EXPECT_TRUE(extents.TakeExactly({At(4, 4), At(0, 2)}).ok());
  EXPECT_THAT(extents.FreeRanges(), IsEmpty());
}

// One flag for each granule.
class Model {
 public:
  explicit Model(uint64_t granules) : taken_(granules) {}

  bool Has(const TierExtent& extent, bool taken) const {
    if (extent.offset / kGranule + extent.bytes / kGranule > taken_.size()) return false;
    for (uint64_t i = 0; i < extent.bytes / kGranule; ++i) {
      if (taken_[extent.offset / kGranule + i] != taken) return false;
    }
    return true;
  }
  void Set(const TierExtent& extent, bool taken) {
    ASSERT_TRUE(Has(extent, !taken));
    for (uint64_t i = 0; i < extent.bytes / kGranule; ++i) {
      taken_[extent.offset / kGranule + i] = taken;
    }
  }
  std::vector<TierExtent> FreeRanges() const {
    std::vector<TierExtent> ranges;
    for (uint64_t i = 0; i < taken_.size(); ++i) {
      if (taken_[i]) continue;
      if (i > 0 && !taken_[i - 1]) {
        ranges.back().bytes += kGranule;
      } else {
        ranges.push_back(At(i, 1));
      }
    }
    return ranges;
  }
  // Returns the fewest ranges that hold so many granules; 0: there are too few.
  size_t Fewest(uint64_t granules) const {
    std::vector<uint64_t> sizes;
    for (const TierExtent& range : FreeRanges()) sizes.push_back(range.bytes / kGranule);
    std::sort(sizes.rbegin(), sizes.rend());
    uint64_t sum = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      sum += sizes[i];
      if (sum >= granules) return i + 1;
    }
    return 0;
  }

 private:
  std::vector<bool> taken_;
};

TEST(Extents, AgreeWithAModelOverManySteps) {
  constexpr uint64_t kGranules = 60;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint64_t n) {
      return std::uniform_int_distribution<uint64_t>(0, n - 1)(random);
    };
    Extents extents(kGranules * kGranule, kGranule);
    Model model(kGranules);
    std::vector<std::vector<TierExtent>> held;
    for (int step = 0; step < 2000; ++step) {
      const uint64_t action = below(10);
      if (action < 4) {
        const uint64_t granules = 1 + below(20);
        const size_t fewest = model.Fewest(granules);
        const auto taken = extents.Take(granules * kGranule);
        ASSERT_EQ(taken.has_value(), fewest > 0);
        if (!taken.has_value()) continue;
        ASSERT_EQ(taken->size(), fewest);
        uint64_t bytes = 0;
        for (const TierExtent& extent : *taken) {
          model.Set(extent, true);
          bytes += extent.bytes;
        }
        ASSERT_EQ(bytes, granules * kGranule);
        held.push_back(*taken);
      } else if (action < 5) {
        const std::vector<TierExtent> asked = {At(below(kGranules), 1 + below(4)),
                                               At(below(kGranules), 1 + below(4))};
        const bool apart = asked[0].offset + asked[0].bytes <= asked[1].offset ||
                           asked[1].offset + asked[1].bytes <= asked[0].offset;
        const bool free = apart && model.Has(asked[0], false) && model.Has(asked[1], false);
        ASSERT_EQ(extents.TakeExactly(asked).ok(), free);
        if (!free) continue;
        for (const TierExtent& extent : asked) model.Set(extent, true);
        held.push_back(asked);
      } else if (!held.empty()) {
        std::swap(held[below(held.size())], held.back());
        for (const TierExtent& extent : held.back()) model.Set(extent, false);
        extents.Give(held.back());
        held.pop_back();
      }
      const std::vector<TierExtent> free = model.FreeRanges();
      ASSERT_EQ(extents.FreeRanges(), free);
      uint64_t bytes = 0;
      for (const TierExtent& range : free) bytes += range.bytes;
      ASSERT_EQ(extents.free_bytes(), bytes);
    }
  }
}

}  // namespace extents_test
}  // namespace gpumemd
