#include "daemon/transport/call_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>

#include "absl/time/clock.h"

namespace gpumemd {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr CallWindowOptions kTen = {.max_calls = 10, .patience = absl::Milliseconds(80)};

TEST(CallWindowTest, SocketsAreHeldWhileItIsFull) {
  CallWindow window(kTen);
  const absl::Time now = absl::Now();
  window.Received(9, now);
  EXPECT_TRUE(window.MayReceive(1, now));
  window.Received(250, now);  // by one read
  EXPECT_FALSE(window.MayReceive(1, now));
  EXPECT_FALSE(window.MayReceive(2, now));
  EXPECT_FALSE(window.MayReceive(2, now));
  EXPECT_THAT(window.Answered(253, now), IsEmpty());
  EXPECT_THAT(window.Answered(1, now), UnorderedElementsAre(1, 2));
  EXPECT_TRUE(window.MayReceive(1, now));
  EXPECT_THAT(window.Answered(1, now), IsEmpty());  // they are held no longer
}

TEST(CallWindowTest, CallsThatWaitLeaveIt) {
  CallWindow window(kTen);
  const absl::Time start = absl::Now();
  window.Received(10, start);
  EXPECT_FALSE(window.MayReceive(1, start + absl::Milliseconds(80)));
  EXPECT_THAT(window.Answered(0, start + absl::Milliseconds(80)), IsEmpty());
  EXPECT_THAT(window.Answered(0, start + absl::Milliseconds(81)), UnorderedElementsAre(1));
  EXPECT_TRUE(window.MayReceive(1, start + absl::Milliseconds(81)));
  // Nobody has to ask in between.
  window.Received(10, start + absl::Milliseconds(82));
  EXPECT_TRUE(window.MayReceive(1, start + absl::Seconds(1)));
}

TEST(CallWindowTest, AnswersToCallsThatHaveLeftItCountForNothing) {
  CallWindow window(kTen);
  const absl::Time start = absl::Now();
  window.Received(10, start);
  const absl::Time later = start + absl::Seconds(1);
  EXPECT_THAT(window.Answered(1000, later), IsEmpty());
  window.Received(10, later);
  EXPECT_FALSE(window.MayReceive(1, later));
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
  std::set<int> held;
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
      const std::vector<int> freed = window.Answered(count, now);
      most.Answer(count, now);
      least.Answer(count, now);
      if (most.Count(now) <= kTen.max_calls / 2) {
        EXPECT_EQ(freed.size(), held.size()) << step;
      }
      if (least.Count(now) > kTen.max_calls / 2) {
        EXPECT_THAT(freed, IsEmpty()) << step;
      }
      if (freed.empty()) continue;
      ++freed_often;
      EXPECT_EQ(std::set<int>(freed.begin(), freed.end()), held) << step;
      held.clear();
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
      held.insert(socket);
    }
  }
  EXPECT_GT(freed_often, 500);
  EXPECT_GT(held_often, 1000);
}

}  // namespace
}  // namespace gpumemd
