// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/meter/call_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <random>

#include "absl/time/clock.h"

namespace gpumemd {
namespace {

constexpr CallWindowOptions kTen = {.max_calls = 10, .patience = absl::Milliseconds(80)};

TEST(CallWindowTest, SocketsAreHeldWhileItIsFull) {
  CallWindow window(kTen);
  const absl::Time now = absl::Now();
  window.Received(9, now);
  EXPECT_TRUE(window.MayReceive(2, now));
  EXPECT_EQ(window.room(), 1u);
  window.Received(250, now);  // by one read
  EXPECT_EQ(window.room(), 0u);
  EXPECT_FALSE(window.MayReceive(2, now));
  EXPECT_FALSE(window.MayReceive(1, now));
  EXPECT_FALSE(window.MayReceive(2, now));
  window.Answered(253, now);
  EXPECT_EQ(window.NextToRead(now), std::nullopt);
  window.Answered(1, now);
  EXPECT_EQ(window.NextToRead(now), 2);
  EXPECT_TRUE(window.MayReceive(2, now));
  window.Received(1, now);
  EXPECT_EQ(window.NextToRead(now), std::nullopt);
  window.Answered(1, now);
  EXPECT_EQ(window.NextToRead(now), 1);
  EXPECT_EQ(window.NextToRead(now), std::nullopt);  // none is held any more
}

TEST(CallWindowTest, CallsThatWaitLeaveIt) {
  CallWindow window(kTen);
  const absl::Time start = absl::Now();
  window.Received(10, start);
  EXPECT_FALSE(window.MayReceive(1, start + absl::Milliseconds(80)));
  EXPECT_EQ(window.NextToRead(start + absl::Milliseconds(80)), std::nullopt);
  EXPECT_EQ(window.NextToRead(start + absl::Milliseconds(81)), 1);
  EXPECT_TRUE(window.MayReceive(1, start + absl::Milliseconds(81)));
  // No call in between is needed.
  window.Received(10, start + absl::Milliseconds(82));
  EXPECT_TRUE(window.MayReceive(1, start + absl::Seconds(1)));
}

TEST(CallWindowTest, AnswersToCallsThatHaveLeftItCountForNothing) {
  CallWindow window(kTen);
  const absl::Time start = absl::Now();
  window.Received(10, start);
  const absl::Time later = start + absl::Seconds(1);
  window.Answered(1000, later);
  window.Received(10, later);
  EXPECT_FALSE(window.MayReceive(1, later));
}

TEST(CallWindowTest, ASocketThatIsAloneMayHaveMoreCalls) {
  int held = 0;
  CallWindow window({.max_calls = 10, .max_calls_alone = 100}, [&held] { ++held; });
  const absl::Time now = absl::Now();
  window.Received(50, now);
  EXPECT_EQ(window.received(), 50u);
  EXPECT_FALSE(window.MayReceive(1, now));
  EXPECT_FALSE(window.MayReceive(2, now));
  EXPECT_EQ(held, 1);
  EXPECT_TRUE(window.any_held());
  window.SetAlone(true);
  EXPECT_EQ(window.room(), 50u);
  EXPECT_TRUE(window.MayReceive(3, now));
  EXPECT_EQ(window.NextToRead(now), 1);
  EXPECT_EQ(window.NextToRead(now), 2);
  EXPECT_FALSE(window.any_held());
  window.SetAlone(false);
  EXPECT_FALSE(window.MayReceive(3, now));
  EXPECT_EQ(held, 2);
}

// A list of all calls that leave after `patience`.
class Calls {
 public:
  explicit Calls(absl::Duration patience) : patience_(patience) {}
  void Receive(size_t count, absl::Time now) { since_.insert(since_.end(), count, now); }
  void Answer(size_t count, absl::Time now) {
    Count(now);
    for (; count > 0 && !since_.empty(); --count) since_.pop_front();
  }
  size_t Count(absl::Time now) {
    while (!since_.empty() && now - since_.front() > patience_) since_.pop_front();
    return since_.size();
  }

 private:
  const absl::Duration patience_;
  std::deque<absl::Time> since_;
};

// A call may leave an eighth of the patience early: the window is between two lists.
TEST(CallWindowTest, RandomCalls) {
  std::mt19937 random(3);
  CallWindow window(kTen);
  Calls most(kTen.patience), least(kTen.patience * 7 / 8);
  std::deque<int> held;
  int freed_often = 0, held_often = 0;
  absl::Time now = absl::Now();
  for (int step = 0; step < 100'000; ++step) {
    now += absl::Milliseconds(random() % 8);
    if (random() % 3 == 0) {
      const size_t count = random() % 6;
      window.Received(count, now);
      most.Receive(count, now);
      least.Receive(count, now);
    } else if (random() % 2 == 0) {
      const size_t count = random() % 3;
      window.Answered(count, now);
      most.Answer(count, now);
      least.Answer(count, now);
      const std::optional<int> next = window.NextToRead(now);
      if (most.Count(now) <= kTen.max_calls / 2) {
        EXPECT_EQ(next.has_value(), !held.empty()) << step;
      }
      if (least.Count(now) > kTen.max_calls / 2) {
        EXPECT_EQ(next, std::nullopt) << step;
      }
      if (!next) continue;
      ++freed_often;
      ASSERT_FALSE(held.empty()) << step;
      EXPECT_EQ(*next, held.front()) << step;
      held.pop_front();
    } else {
      const int socket = static_cast<int>(random() % 4);
      const bool may = window.MayReceive(socket, now);
      if (most.Count(now) < kTen.max_calls) {
        EXPECT_TRUE(may) << step;
      }
      if (least.Count(now) >= kTen.max_calls) {
        EXPECT_FALSE(may) << step;
      }
      if (may) continue;
      ++held_often;
      if (std::find(held.begin(), held.end(), socket) == held.end()) held.push_back(socket);
    }
  }
  EXPECT_GT(freed_often, 500);
  EXPECT_GT(held_often, 1000);
}

}  // namespace
}  // namespace gpumemd
