// SPDX-License-Identifier: Apache-2.0
#include "client/python/extension/block_map.h"

#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gpumem::python {
namespace {

void* At(uintptr_t number) { return reinterpret_cast<void*>(number * 512); }

TEST(BlockMapTest, FindsWhatWasPutAndNothingElse) {
  BlockMap<int> map;
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(map.Take(At(1)), std::nullopt);
  map.Put(At(1), 10);
  map.Put(At(2), 20);
  map.Put(At(1), 11);
  EXPECT_EQ(map.size(), 2u);
  EXPECT_EQ(map.Take(At(1)), 11);
  EXPECT_EQ(map.Take(At(1)), std::nullopt);
  EXPECT_EQ(map.Take(At(2)), 20);
  EXPECT_TRUE(map.empty());
}

// Compares with std::map: addresses close together, far apart, and all in one place of the table.
TEST(BlockMapTest, RandomOperationsAgainstAModel) {
  std::mt19937_64 chance(20261122);
  for (const uintptr_t stride : {uintptr_t{1}, uintptr_t{4096}, uintptr_t{1} << 32}) {
    BlockMap<uint64_t> map;
    std::map<void*, uint64_t> model;
    for (int step = 0; step < 200'000; ++step) {
      // Alternates between phases with many addresses and with few.
      const uintptr_t many = step / 20'000 % 2 == 0 ? 3000 : 40;
      void* const block = At((1 + chance() % many) * stride);
      if (chance() % 3 != 0) {
        map.Put(block, static_cast<uint64_t>(step));
        model[block] = static_cast<uint64_t>(step);
      } else {
        const auto found = model.find(block);
        const std::optional<uint64_t> taken = map.Take(block);
        ASSERT_EQ(taken.has_value(), found != model.end());
        if (found == model.end()) continue;
        ASSERT_EQ(*taken, found->second);
        model.erase(found);
      }
      ASSERT_EQ(map.size(), model.size());
    }
    for (const auto& [block, value] : model) ASSERT_EQ(map.Take(block), value);
    EXPECT_TRUE(map.empty());
  }
}

}  // namespace
}  // namespace gpumem::python
