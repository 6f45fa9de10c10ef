// SPDX-License-Identifier: Apache-2.0
#include "client/preload/vmm/ranges.h"

#include <vector>

#include "gtest/gtest.h"

namespace gpumem::preload {
namespace {

struct Item {
  uint64_t address;
  uint64_t size;
  int name;
};

std::vector<int> NamesIn(Ranges<Item>& ranges, uint64_t address, uint64_t size) {
  std::vector<int> names;
  ranges.ForEach(address, size, [&](const Item& item) { names.push_back(item.name); });
  return names;
}

class RangesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // 40 items of 10 bytes with gaps of 10, from 100 on; the order of adding is another one.
    for (uint64_t i = 0; i < 40; ++i) {
      const uint64_t place = i * 7 % 40;
      ASSERT_TRUE(ranges_.Add({100 + 20 * place, 10, static_cast<int>(place)}));
    }
  }
  void TearDown() override { free(ranges_.items); }

  Ranges<Item> ranges_;
};

TEST_F(RangesTest, FindsTheItemThatContainsAnAddress) {
  for (uint64_t address = 100; address < 900; ++address) {
    const Item* item = ranges_.At(address);
    if ((address - 100) % 20 >= 10) {
      EXPECT_EQ(item, nullptr) << address;
    } else {
      ASSERT_NE(item, nullptr) << address;
      EXPECT_EQ(item->name, static_cast<int>((address - 100) / 20));
    }
  }
  EXPECT_EQ(ranges_.At(99), nullptr);
  EXPECT_EQ(ranges_.At(890), nullptr);
}

TEST_F(RangesTest, VisitsThoseThatARangeTouches) {
  EXPECT_EQ(NamesIn(ranges_, 109, 12), (std::vector<int>{0, 1}));
  EXPECT_EQ(NamesIn(ranges_, 110, 10), (std::vector<int>{}));
  EXPECT_EQ(NamesIn(ranges_, 0, 121), (std::vector<int>{0, 1}));
  EXPECT_EQ(NamesIn(ranges_, 880, 100), (std::vector<int>{39}));
}

TEST_F(RangesTest, RemovesThem) {
  int removed = 0;
  ranges_.Remove(120, 50, [&](const Item&) { ++removed; });
  EXPECT_EQ(removed, 3);
  EXPECT_EQ(ranges_.count, 37u);
  EXPECT_EQ(NamesIn(ranges_, 0, 210), (std::vector<int>{0, 4, 5}));
  ranges_.Remove(120, 50, [&](const Item&) { ++removed; });
  EXPECT_EQ(removed, 3);
  ranges_.Remove(0, 10000, [&](const Item&) { ++removed; });
  EXPECT_EQ(removed, 40);
  EXPECT_EQ(ranges_.count, 0u);
}

}  // namespace
}  // namespace gpumem::preload
