// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/calls.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace gpumem::web {
namespace {

// Where jobs leave their places.
class Shelf {
 public:
  void Put(int job, Calls::Place place) {
    absl::MutexLock lock(&mutex_);
    jobs_.insert(job);
    places_.push_back(std::move(place));
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
    place = std::move(places_.back());
    places_.pop_back();
  }

 private:
  absl::Mutex mutex_;
  std::set<int> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<Calls::Place> places_ ABSL_GUARDED_BY(mutex_);
};

TEST(CallsTest, AUserWithoutAPlaceHoldsUpNoOther) {
  Shelf shelf;
  auto calls = Calls::Start(4);
  ASSERT_TRUE(calls.ok()) << calls.status();
  const auto add = [&](uid_t user, int job) {
    (*calls)->Add(user, [&shelf, job](Calls::Place place) { shelf.Put(job, std::move(place)); });
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
  {
    auto calls = Calls::Start(1);
    ASSERT_TRUE(calls.ok()) << calls.status();
    absl::Notification done;
    (*calls)->Add(1, [&](Calls::Place place) {
      kept = std::move(place);
      done.Notify();
    });
    (*calls)->Add(1, [](const Calls::Place&) { ADD_FAILURE() << "there is no place"; });
    done.WaitForNotification();
  }
  kept.reset();
}

}  // namespace
}  // namespace gpumem::web
