// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace gpumemd {
namespace {

TEST(Workers, AllWorkIsDoneBeforeTheEnd) {
  std::atomic<int> done = 0;
  {
    Workers workers(4);
    for (int i = 0; i < 1000; ++i) workers.Run([&] { ++done; });
  }
  EXPECT_EQ(done, 1000);
}

TEST(Workers, BlockedWorkDoesNotBlockOtherWork) {
  absl::Notification go;
  absl::BlockingCounter waiting(7);
  absl::Notification ran;
  Workers workers(8);
  for (int i = 0; i < 7; ++i) {
    workers.Run([&] {
      waiting.DecrementCount();
      go.WaitForNotification();
    });
  }
  waiting.Wait();  // all seven at one time
  workers.Run([&] { ran.Notify(); });
  EXPECT_TRUE(ran.WaitForNotificationWithTimeout(absl::Minutes(1)));
  go.Notify();
}

TEST(Workers, BeyondTheBoundWorkWaitsItsTurn) {
  std::atomic<int> at_once = 0, most = 0, done = 0;
  {
    Workers workers(3);
    for (int i = 0; i < 300; ++i) {
      workers.Run([&] {
        const int now = ++at_once;
        for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        ++done;
        --at_once;
      });
    }
  }
  EXPECT_EQ(done, 300);
  EXPECT_LE(most, 3);
}

TEST(Workers, WorkMayOwnWhatCannotBeCopied) {
  int seen = 0;
  {
    Workers workers(1);
    workers.Run([&seen, owned = std::make_unique<int>(7)] { seen = *owned; });
  }
  EXPECT_EQ(seen, 7);
}

}  // namespace
}  // namespace gpumemd
