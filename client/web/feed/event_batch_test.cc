// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/event_batch.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>

namespace gpumem::web {
namespace {

TEST(EventBatch, KeepsTheOrderOfAllAndTheLast) {
  std::mt19937 random(9);
  for (int i = 0; i < 20; ++i) {
    EventBatch all;
    uint64_t told = 0;
    for (int j = 0; j < 30; ++j) {
      EventBatch next;
      const auto add = [&](std::vector<v1::EventRecord>* list, size_t count) {
        for (; count > 0; --count) list->emplace_back().set_number(++told);
      };
      if (random() % 4 == 0) add(&next.past, random() % EventBatch::kMost);
      if (random() % 2 == 0) add(&next.later, random() % 300);
      all.Append(std::move(next));
      uint64_t last = told - all.past.size() - all.later.size();
      for (const auto* list : {&all.past, &all.later}) {
        for (const v1::EventRecord& each : *list) ASSERT_EQ(each.number(), ++last);
      }
      ASSERT_LE(all.past.size(), EventBatch::kMost);
      ASSERT_LT(all.later.size(), 2 * EventBatch::kMost);
      ASSERT_GE(all.past.size() + all.later.size(), std::min<size_t>(told, EventBatch::kMost));
    }
  }
}

TEST(EventBatch, HasTheLastState) {
  EventBatch all;
  EXPECT_TRUE(all.empty());
  all.Append({.state = absl::ResourceExhaustedError("")});
  all.Append({});
  EXPECT_TRUE(absl::IsResourceExhausted(*all.state));
  all.Append({.state = absl::OkStatus()});
  EXPECT_TRUE(all.state->ok());
  EXPECT_FALSE(all.empty());
}

}  // namespace
}  // namespace gpumem::web
