// SPDX-License-Identifier: Apache-2.0
#include "common/trace/ring.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <random>
#include <thread>
#include <vector>

namespace gpumem::trace {
namespace {

constexpr size_t kSlots = 8;

TEST(RingTest, RandomOperationsAsAModel) {
  std::mt19937 random(7);
  std::array<int, kSlots> slots = {};
  Ring<int, kSlots> ring;
  std::deque<int> model;
  uint64_t dropped = 0;
  for (int i = 0; i < 100'000; ++i) {
    if (random() % 8 != 0) {
      ring.Put(slots.data(), i);
      if (model.size() < kSlots) {
        model.push_back(i);
      } else {
        ++dropped;
      }
      continue;
    }
    std::deque<int> taken;
    ring.TakeAll(slots.data(), [&](int value) { taken.push_back(value); });
    EXPECT_EQ(taken, model);
    EXPECT_EQ(ring.NewlyDropped(), dropped);
    model.clear();
    dropped = 0;
  }
}

TEST(RingTest, HoldsExactlyItsSize) {
  std::array<int, kSlots> slots = {};
  Ring<int, kSlots> ring;
  for (size_t i = 0; i < kSlots; ++i) ring.Put(slots.data(), 1);
  EXPECT_EQ(ring.NewlyDropped(), 0u);
  ring.Put(slots.data(), 1);
  EXPECT_EQ(ring.NewlyDropped(), 1u);
}

TEST(RingTest, LosesNothingUncounted) {
  constexpr uint64_t kValues = 200'000;
  std::array<uint64_t, kSlots> slots = {};
  Ring<uint64_t, kSlots> ring;
  std::atomic<bool> done = false;
  std::thread putting([&] {
    for (uint64_t i = 1; i <= kValues; ++i) ring.Put(slots.data(), i);
    done = true;
  });
  uint64_t taken = 0, last = 0, dropped = 0;
  bool in_order = true;
  const auto take = [&](uint64_t value) {
    in_order &= value > last;
    last = value;
    ++taken;
  };
  while (!done) ring.TakeAll(slots.data(), take);
  putting.join();
  ring.TakeAll(slots.data(), take);
  dropped = ring.NewlyDropped();
  EXPECT_TRUE(in_order);
  EXPECT_EQ(taken + dropped, kValues);
}

}  // namespace
}  // namespace gpumem::trace
