// SPDX-License-Identifier: Apache-2.0
#include "client/preload/hash_map.h"

#include <cstdint>
#include <map>
#include <random>

#include "gtest/gtest.h"

namespace gpumem::preload {
namespace {

// Keys that are close together, as addresses are, so that probes run into each other.
TEST(HashMapTest, AgreesWithAMapOverRandomOperations) {
  std::mt19937_64 random(1);
  HashMap<uint64_t> map;
  std::map<uint64_t, uint64_t> model;
  for (int i = 0; i < 200'000; ++i) {
    uint64_t key = (1 + random() % 700) << 20;
    switch (random() % 3) {
      case 0:
        ASSERT_TRUE(map.Put(key, i));
        model[key] = i;
        break;
      case 1: {
        uint64_t value = 0;
        auto found = model.find(key);
        ASSERT_EQ(map.Take(key, &value), found != model.end());
        if (found != model.end()) {
          EXPECT_EQ(value, found->second);
          model.erase(found);
        }
        break;
      }
      default: {
        const uint64_t* value = map.Get(key);
        auto found = model.find(key);
        ASSERT_EQ(value != nullptr, found != model.end());
        if (value != nullptr) {
          EXPECT_EQ(*value, found->second);
        }
      }
    }
    ASSERT_EQ(map.size(), model.size());
  }
  // Removal by condition misses no entry, although entries move.
  map.RemoveIf([](uint64_t, uint64_t value) { return value % 2 == 0; });
  for (const auto& [key, value] : model) EXPECT_EQ(map.Get(key) != nullptr, value % 2 != 0);
  map.Abandon();
  EXPECT_EQ(map.size(), 0u);
  EXPECT_EQ(map.Get(1 << 20), nullptr);
}

}  // namespace
}  // namespace gpumem::preload
