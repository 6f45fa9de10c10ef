// SPDX-License-Identifier: Apache-2.0
#include "client/preload/accountant/blocks.h"

#include <map>
#include <random>

#include "gtest/gtest.h"

namespace gpumem::preload {
namespace {

TEST(BlocksTest, FindsTheBlockThatContainsAnAddress) {
  int pool = 0;
  Blocks blocks;
  blocks.Put(0x1000, {.bytes = 1000, .owner = &pool});
  blocks.Put(0x2000, {.bytes = 1});
  EXPECT_FALSE(blocks.Find(0xfff).has_value());
  ASSERT_TRUE(blocks.Find(0x1000).has_value());
  ASSERT_TRUE(blocks.Find(0x1000 + 999).has_value());
  EXPECT_EQ(blocks.Find(0x1000 + 999)->base, 0x1000u);
  EXPECT_EQ(blocks.Find(0x1000 + 999)->block.owner, &pool);
  EXPECT_FALSE(blocks.Find(0x1000 + 1000).has_value());
  EXPECT_TRUE(blocks.Find(0x2000).has_value());
  EXPECT_FALSE(blocks.Find(0x2001).has_value());
  EXPECT_FALSE(blocks.Find(~uint64_t{0}).has_value());
}

TEST(BlocksTest, TakesABlockOnlyAsTheSortThatItIs) {
  int pool = 0;
  Blocks blocks;
  blocks.Put(0x1000, {.bytes = 8, .owner = &pool});
  blocks.Put(0x2000, {.bytes = 8});
  EXPECT_FALSE(blocks.Take(0x1000, /*owned=*/false).has_value());
  EXPECT_FALSE(blocks.Take(0x2000, /*owned=*/true).has_value());
  EXPECT_FALSE(blocks.Take(0x1001, /*owned=*/true).has_value());
  EXPECT_TRUE(blocks.Take(0x1000, /*owned=*/true).has_value());
  EXPECT_FALSE(blocks.Take(0x1000, /*owned=*/true).has_value());
  EXPECT_TRUE(blocks.Take(0x2000, /*owned=*/false).has_value());
}

TEST(BlocksTest, TakesAllOfOnePool) {
  int first = 0, second = 0;
  Blocks blocks;
  for (uint64_t i = 1; i <= 10; ++i) {
    blocks.Put(i * 4096, {.bytes = 512, .owner = i % 2 == 0 ? &first : &second});
  }
  std::vector<uint64_t> bases;
  for (const Blocks::Found& found : blocks.TakeAll(&first)) bases.push_back(found.base);
  EXPECT_EQ(bases, (std::vector<uint64_t>{8192, 16384, 24576, 32768, 40960}));
  EXPECT_TRUE(blocks.TakeAll(&first).empty());
  EXPECT_EQ(blocks.TakeAll(&second).size(), 5u);
}

TEST(BlocksTest, AgreesWithAPlainMap) {
  std::mt19937_64 random(7);
  Blocks blocks;
  std::map<uint64_t, uint64_t> model;  // base to bytes, in cells of 4 KiB
  int pool = 0;
  for (int step = 0; step < 20000; ++step) {
    const uint64_t cell = random() % 64, base = cell * 4096;
    if (random() % 2 == 0) {
      const uint64_t bytes = 1 + random() % 4096;
      if (model.try_emplace(base, bytes).second) {
        blocks.Put(base, {.bytes = bytes, .owner = &pool});
      }
    } else {
      EXPECT_EQ(blocks.Take(base, /*owned=*/true).has_value(), model.erase(base) == 1);
    }
    const uint64_t address = random() % (64 * 4096);
    const auto it = model.find(address / 4096 * 4096);
    const bool inside = it != model.end() && address - it->first < it->second;
    ASSERT_EQ(blocks.Find(address).has_value(), inside) << address;
  }
}

}  // namespace
}  // namespace gpumem::preload
