// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/sharded_map.h"

#include <map>
#include <random>

#include "daemon/core/ids.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

TEST(ShardedMap, IsAMap) {
  ShardedMap<LeaseId, int> map;
  std::map<LeaseId, int> expected;
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const LeaseId id{random() % 5000};
    switch (random() % 3) {
      case 0:
        ASSERT_EQ(map.Insert(id, i), expected.emplace(id, i).second);
        break;
      case 1:
        ASSERT_EQ(map.Erase(id), expected.erase(id) > 0);
        break;
      default:
        const auto it = expected.find(id);
        ASSERT_EQ(map.contains(id), it != expected.end());
        if (it != expected.end()) {
          ASSERT_EQ(*map.Find(id), it->second);
          map.at(id) = it->second = -i;
        }
    }
    ASSERT_EQ(map.size(), expected.size());
  }
  std::map<LeaseId, int> all;
  map.ForEach([&](LeaseId id, int value) { EXPECT_TRUE(all.emplace(id, value).second); });
  EXPECT_TRUE(all == expected);
}

TEST(ShardedMap, SpreadsSecretsAndNumbers) {
  // All shards have about the same size. Otherwise the largest would take as long as a single map.
  ShardedMap<Secret, int> secrets;
  ShardedMap<LeaseId, int> numbers;
  std::mt19937_64 random(2);
  constexpr int kEntries = 256 * 64;
  for (int i = 0; i < kEntries; ++i) {
    Secret secret{};
    for (uint8_t& byte : secret) byte = static_cast<uint8_t>(random());
    secrets.Insert(secret, i);
    numbers.Insert(LeaseId{static_cast<uint64_t>(i)}, i);
  }
  EXPECT_LT(secrets.LargestShard(), 3u * 64);
  EXPECT_LT(numbers.LargestShard(), 3u * 64);
}

TEST(ShardedMap, GivesMemoryBack) {
  ShardedMap<LeaseId, int> map;
  constexpr int kMany = 300000, kFew = 300;
  for (int i = 0; i < kMany; ++i) map.Insert(LeaseId{static_cast<uint64_t>(i)}, i);
  EXPECT_GE(map.capacity(), size_t{kMany});
  for (int i = kFew; i < kMany; ++i) EXPECT_TRUE(map.Erase(LeaseId{static_cast<uint64_t>(i)}));
  EXPECT_EQ(map.size(), size_t{kFew});
  EXPECT_LE(map.capacity(), 256u * 64);
  for (int i = 0; i < kFew; ++i) EXPECT_EQ(map.at(LeaseId{static_cast<uint64_t>(i)}), i);
}

}  // namespace
}  // namespace gpumemd
