// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/polling/event_engine.h"

#include <chrono>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::ElementsAre;

TEST(QuietEventEngineTest, RunsClosures) {
  const auto engine = std::make_shared<QuietEventEngine>();
  absl::Notification done;
  EXPECT_FALSE(engine->IsWorkerThread());
  engine->Run([&] {
    EXPECT_TRUE(engine->IsWorkerThread());
    done.Notify();
  });
  done.WaitForNotification();
}

TEST(QuietEventEngineTest, RunsTimersInTheOrderOfTheirTimes) {
  const auto engine = std::make_shared<QuietEventEngine>();
  absl::Mutex mutex;
  std::vector<int> ran;
  const auto note = [&](int which) {
    return [&, which] {
      absl::MutexLock lock(&mutex);
      ran.push_back(which);
    };
  };
  const absl::Time start = absl::Now();
  engine->RunAfter(milliseconds(40), note(3));
  engine->RunAfter(milliseconds(20), note(1));
  engine->RunAfter(milliseconds(20), note(2));
  absl::MutexLock lock(&mutex);
  const auto all = [&] { return ran.size() == 3; };
  mutex.Await(absl::Condition(&all));
  EXPECT_THAT(ran, ElementsAre(1, 2, 3));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(40));
}

TEST(QuietEventEngineTest, CancelsOnce) {
  const auto engine = std::make_shared<QuietEventEngine>();
  const auto handle = engine->RunAfter(hours(1), [] { ADD_FAILURE(); });
  EXPECT_TRUE(engine->Cancel(handle));
  EXPECT_FALSE(engine->Cancel(handle));
  EXPECT_FALSE(engine->Cancel({{4711, 0}}));
}

TEST(QuietEventEngineTest, MayEndInAClosure) {
  auto engine = std::make_shared<QuietEventEngine>();
  absl::Notification given, done;
  QuietEventEngine* const raw = engine.get();
  raw->Run([&given, &done, engine = std::move(engine)]() mutable {
    given.WaitForNotification();
    engine.reset();
    done.Notify();
  });
  given.Notify();
  done.WaitForNotification();
}

}  // namespace
}  // namespace gpumemd
