// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace gpumem::web {
namespace {

// Where jobs leave their places.
class Shelf {
 public:
  void Put(int job, Calls::Place place) {
    absl::MutexLock lock(&mutex_);
    jobs_.insert(job);
    if (!closed_) places_.push_back(std::move(place));
  }
  std::set<int> WaitFor(size_t jobs) {
    const auto enough = [&]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return jobs_.size() >= jobs; };
    absl::MutexLock lock(&mutex_, absl::Condition(&enough));
    return jobs_;
  }
  void FreeOne() {
    Calls::Place place;
    absl::MutexLock lock(&mutex_);
    if (places_.empty()) return;
    place = std::move(places_.back());
    places_.pop_back();
  }
  // Frees all places, also those of later jobs.
  void FreeAll() {
    std::vector<Calls::Place> places;
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    places = std::move(places_);
  }

 private:
  absl::Mutex mutex_;
  std::set<int> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<Calls::Place> places_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST(CallsTest, AUserWithoutAPlaceHoldsUpNoOther) {
  Shelf shelf;
  auto calls = Calls::Start({.places = 4, .waiting = 8});
  ASSERT_TRUE(calls.ok()) << calls.status();
  std::vector<Calls::Ticket> tickets;
  const auto add = [&](uid_t user, int job) {
    auto ticket = (*calls)->Add(
        user, [&shelf, job](Calls::Place place) { shelf.Put(job, std::move(place)); });
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    tickets.push_back(*std::move(ticket));
  };
  for (int job = 0; job < 6; ++job) add(1000, job);
  EXPECT_EQ(shelf.WaitFor(4), (std::set<int>{0, 1, 2, 3}));
  add(1001, 10);
  EXPECT_EQ(shelf.WaitFor(5), (std::set<int>{0, 1, 2, 3, 10})) << "4 waits for a place";
  // The place of user 1001 is the last on the shelf, which helps no other user.
  shelf.FreeOne();
  add(1002, 20);
  EXPECT_EQ(shelf.WaitFor(6), (std::set<int>{0, 1, 2, 3, 10, 20}));
  shelf.FreeOne();
  shelf.FreeOne();
  EXPECT_EQ(shelf.WaitFor(7), (std::set<int>{0, 1, 2, 3, 4, 10, 20}));
  shelf.FreeOne();
  shelf.FreeOne();
  EXPECT_EQ(shelf.WaitFor(8).count(5), 1U);
}

TEST(CallsTest, PlacesMayOutliveTheCalls) {
  Calls::Place kept;
  Calls::Ticket ticket;
  {
    auto calls = Calls::Start({});
    ASSERT_TRUE(calls.ok()) << calls.status();
    absl::Notification done;
    const auto first = (*calls)->Add(1, [&](Calls::Place place) {
      kept = std::move(place);
      done.Notify();
    });
    done.WaitForNotification();
    ticket = *(*calls)->Add(1, [](const Calls::Place&) { ADD_FAILURE() << "there is no place"; });
  }
  kept.reset();
  ticket.reset();
}

TEST(CallsTest, AJobWithoutATicketIsDropped) {
  Shelf shelf;
  auto calls = Calls::Start({.places = 1, .waiting = 4});
  ASSERT_TRUE(calls.ok()) << calls.status();
  const auto add = [&](uid_t user, int job) {
    return (*calls)->Add(user,
                         [&shelf, job](Calls::Place place) { shelf.Put(job, std::move(place)); });
  };
  const auto first = add(1000, 0);
  shelf.WaitFor(1);
  // The job and all that it owns is freed at once.
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = owned;
  auto dropped = (*calls)->Add(
      1000, [owned = std::move(owned)](const Calls::Place&) { ADD_FAILURE() << "it was dropped"; });
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_FALSE(alive.expired());
  dropped->reset();
  EXPECT_TRUE(alive.expired());
  const auto next = add(1000, 1);
  shelf.FreeOne();
  EXPECT_EQ(shelf.WaitFor(2), (std::set<int>{0, 1}));
}

TEST(CallsTest, FewJobsOfAUserWait) {
  Shelf shelf;
  auto calls = Calls::Start({.places = 1, .waiting = 3});
  ASSERT_TRUE(calls.ok()) << calls.status();
  const auto add = [&](uid_t user) {
    return (*calls)->Add(user, [&shelf](Calls::Place place) { shelf.Put(0, std::move(place)); });
  };
  std::vector<absl::StatusOr<Calls::Ticket>> tickets;
  tickets.push_back(add(1000));
  shelf.WaitFor(1);
  for (int i = 0; i < 3; ++i) {
    tickets.push_back(add(1000));
    EXPECT_TRUE(tickets.back().ok()) << tickets.back().status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(add(1000).status()));
  EXPECT_TRUE(add(1001).ok());
  tickets.pop_back();
  EXPECT_TRUE(add(1000).ok());
}

TEST(CallsTest, ABlockedUserHoldsUpNoOther) {
  absl::Notification go_on;
  absl::BlockingCounter blocked(2);
  std::atomic<int> running = 0;
  auto calls = Calls::Start({.places = 8, .waiting = 8, .threads = 3});
  ASSERT_TRUE(calls.ok()) << calls.status();
  std::vector<Calls::Ticket> tickets;
  for (int i = 0; i < 6; ++i) {
    auto ticket = (*calls)->Add(1000, [&](const Calls::Place&) {
      if (++running <= 2) blocked.DecrementCount();
      go_on.WaitForNotification();
    });
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    tickets.push_back(*std::move(ticket));
  }
  blocked.Wait();
  absl::Notification done;
  const auto other = (*calls)->Add(1001, [&](const Calls::Place&) { done.Notify(); });
  const bool served = done.WaitForNotificationWithTimeout(absl::Seconds(10));
  EXPECT_TRUE(served);
  EXPECT_EQ(running, 2);
  go_on.Notify();
  if (!served) done.WaitForNotification();
}

// Adds, drops and frees at random, while jobs run.
TEST(CallsTest, RandomTickets) {
  std::mt19937 random(5);
  Shelf shelf;
  std::vector<Calls::Ticket> tickets;
  auto calls = Calls::Start({.places = 2, .waiting = 6});
  ASSERT_TRUE(calls.ok()) << calls.status();
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0) {
      auto ticket = (*calls)->Add(1000 + random() % 3, [&shelf, i](Calls::Place place) {
        if (i % 2 == 0) shelf.Put(i, std::move(place));
      });
      if (ticket.ok()) tickets.push_back(*std::move(ticket));
    } else if (random() % 2 == 0) {
      shelf.FreeOne();
    } else if (!tickets.empty()) {
      std::swap(tickets[random() % tickets.size()], tickets.back());
      tickets.pop_back();
    }
  }
  // All users still get a turn.
  tickets.clear();
  shelf.FreeAll();
  for (int user = 1000; user < 1003; ++user) {
    absl::Notification done;
    auto ticket = (*calls)->Add(user, [&](const Calls::Place&) { done.Notify(); });
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(30))) << user;
  }
}

}  // namespace
}  // namespace gpumem::web
