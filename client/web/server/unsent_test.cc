// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/unsent.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gpumem::web {
namespace {

Message Letters(size_t size) { return std::make_shared<const std::string>(size, 'x'); }

TEST(UnsentTest, ASharedTextCountsOnce) {
  const auto unsent = std::make_shared<Unsent>(1000);
  const Message shared = Letters(600);
  Unsent::Text one = unsent->Count(shared), other = unsent->Count(shared);
  EXPECT_EQ(unsent->bytes(), 600U);
  Unsent::Text more = unsent->Count(Letters(400));
  EXPECT_FALSE(unsent->exceeded());
  const Unsent::Text last = unsent->Count(Letters(1));
  EXPECT_TRUE(unsent->exceeded());
  one.reset();
  EXPECT_EQ(unsent->bytes(), 1001U);
  other.reset();
  EXPECT_EQ(unsent->bytes(), 401U);
  more.reset();
  EXPECT_EQ(unsent->bytes(), 1U);
}

TEST(UnsentTest, TextsMayOutliveTheCount) {
  auto unsent = std::make_shared<Unsent>(1);
  Unsent::Text text = unsent->Count(Letters(600));
  unsent.reset();
  text.reset();
}

TEST(UnsentTest, BehavesAsTheModel) {
  std::mt19937 random(3);
  const auto unsent = std::make_shared<Unsent>(100);
  std::vector<Message> messages;
  for (size_t i = 0; i < 10; ++i) messages.push_back(Letters(i));
  std::vector<std::pair<size_t, Unsent::Text>> held;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0 || held.empty()) {
      const size_t at = random() % messages.size();
      held.emplace_back(at, unsent->Count(messages[at]));
    } else {
      std::swap(held[random() % held.size()], held.back());
      held.pop_back();
    }
    std::set<size_t> distinct;
    for (const auto& [at, text] : held) distinct.insert(at);
    size_t bytes = 0;
    for (const size_t at : distinct) bytes += at;
    ASSERT_EQ(unsent->bytes(), bytes);
  }
}

TEST(UnsentTest, TheWorstIsOfTheUserWithMost) {
  EXPECT_EQ(WorstOf({}), std::nullopt);
  EXPECT_EQ(WorstOf({{.id = 1, .user = 7, .bytes = 0}}), std::nullopt);
  const std::vector<UnsentOf> connections = {{.id = 1, .user = 7, .bytes = 50},
                                             {.id = 2, .user = std::nullopt, .bytes = 20},
                                             {.id = 3, .user = 8, .bytes = 30},
                                             {.id = 4, .user = 8, .bytes = 31},
                                             {.id = 5, .user = 8, .bytes = 0}};
  EXPECT_EQ(WorstOf(connections), 4U);
}

}  // namespace
}  // namespace gpumem::web
