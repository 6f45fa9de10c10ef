// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/retained_pool.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace gpumemd {
namespace {

constexpr auto kOtherKind = static_cast<Kind>(7);

TEST(RetainedPoolTest, EmptyHasNothing) {
  RetainedPool pool;
  EXPECT_TRUE(pool.empty());
  EXPECT_EQ(pool.size(), 0u);
  EXPECT_EQ(pool.TakeFit(Kind::kVmm, 512), std::nullopt);
  EXPECT_EQ(pool.TakeOldest(), std::nullopt);
}

TEST(RetainedPoolTest, FitsAreExactInSizeAndKind) {
  RetainedPool pool;
  pool.Add(SegmentId{1}, Kind::kVmm, 512);
  EXPECT_EQ(pool.TakeFit(Kind::kVmm, 511), std::nullopt);
  EXPECT_EQ(pool.TakeFit(Kind::kVmm, 513), std::nullopt);
  EXPECT_EQ(pool.TakeFit(kOtherKind, 512), std::nullopt);
  EXPECT_TRUE(pool.Contains(SegmentId{1}, Kind::kVmm, 512));
  EXPECT_FALSE(pool.Contains(SegmentId{1}, Kind::kVmm, 511));
  EXPECT_FALSE(pool.Contains(SegmentId{2}, Kind::kVmm, 512));
  EXPECT_EQ(pool.TakeFit(Kind::kVmm, 512)->id, SegmentId{1});
  EXPECT_FALSE(pool.Contains(SegmentId{1}, Kind::kVmm, 512));
  EXPECT_EQ(pool.TakeFit(Kind::kVmm, 512), std::nullopt);
  EXPECT_TRUE(pool.empty());
}

TEST(RetainedPoolTest, TheOldestIsTheOneThatWasAddedFirst) {
  RetainedPool pool;
  pool.Add(SegmentId{3}, Kind::kVmm, 512);
  pool.Add(SegmentId{1}, Kind::kVmm, 64);
  pool.Add(SegmentId{2}, kOtherKind, 512);
  EXPECT_EQ(pool.TakeOldest(), SegmentId{3});
  EXPECT_EQ(pool.TakeOldest(), SegmentId{1});
  pool.Add(SegmentId{3}, Kind::kVmm, 512);  // again: now the youngest
  EXPECT_EQ(pool.size(), 2u);
  EXPECT_EQ(pool.TakeOldest(), SegmentId{2});
  EXPECT_EQ(pool.TakeOldest(), SegmentId{3});
  EXPECT_EQ(pool.TakeOldest(), std::nullopt);
}

TEST(RetainedPoolTest, EachChangeOfItsBytesIsTold) {
  RetainedPool pool;
  std::vector<std::pair<uint64_t, uint64_t>> told;
  pool.OnChange([&](uint64_t before, uint64_t after) { told.emplace_back(before, after); });
  pool.Add(SegmentId{1}, Kind::kVmm, 512);
  pool.Add(SegmentId{2}, Kind::kVmm, 64);
  pool.TakeFit(Kind::kVmm, 512);
  pool.Take(SegmentId{2}, Kind::kVmm, 64);
  EXPECT_EQ(told,
            (std::vector<std::pair<uint64_t, uint64_t>>{{0, 512}, {512, 576}, {576, 64}, {64, 0}}));
}

TEST(RetainedPoolTest, OneThatIsPutBackKeepsItsAge) {
  RetainedPool pool;
  pool.Add(SegmentId{1}, Kind::kVmm, 512);
  pool.Add(SegmentId{2}, Kind::kVmm, 64);
  const auto aside = pool.TakeFit(Kind::kVmm, 512);
  ASSERT_TRUE(aside.has_value());
  EXPECT_EQ(aside->id, SegmentId{1});
  EXPECT_EQ(pool.bytes(), 64u);
  EXPECT_FALSE(pool.TakeFit(Kind::kVmm, 512).has_value());
  pool.PutBack(*aside, Kind::kVmm, 512);
  EXPECT_EQ(pool.bytes(), 576u);
  EXPECT_EQ(pool.Fits(Kind::kVmm, 512), 1u);
  EXPECT_EQ(pool.TakeOldest(), SegmentId{1});
}

TEST(RetainedPoolTest, SegmentTakenForReuseIsNoLongerTheOldest) {
  RetainedPool pool;
  pool.Add(SegmentId{1}, Kind::kVmm, 512);
  pool.Add(SegmentId{2}, Kind::kVmm, 64);
  pool.Add(SegmentId{3}, Kind::kVmm, 512);
  EXPECT_EQ(pool.TakeFit(Kind::kVmm, 512)->id, SegmentId{1});
  EXPECT_EQ(pool.TakeOldest(), SegmentId{2});
  EXPECT_EQ(pool.TakeFit(Kind::kVmm, 512)->id, SegmentId{3});
  EXPECT_TRUE(pool.empty());
}

}  // namespace
}  // namespace gpumemd
