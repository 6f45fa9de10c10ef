// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/part_relay.h"

#include <atomic>
#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

TEST(PartRelayTest, CallsThePartOnlyWhileItIsThere) {
  PartRelay<int> relay;
  int part = 0;
  const auto count = [](int& it) { ++it; };
  EXPECT_FALSE(relay.With(count));
  relay.Set(&part);
  EXPECT_TRUE(relay.With(count));
  relay.Clear();
  EXPECT_FALSE(relay.With(count));
  EXPECT_EQ(part, 1);
}

TEST(PartRelayTest, ClearWaitsForACallInProgress) {
  PartRelay<std::atomic<bool>> relay;
  auto part = std::make_unique<std::atomic<bool>>(false);
  relay.Set(part.get());
  absl::Notification called, may_end;
  std::thread caller([&] {
    relay.With([&](std::atomic<bool>& it) {
      called.Notify();
      may_end.WaitForNotification();
      it = true;
    });
  });
  called.WaitForNotification();
  std::atomic<bool> done_before_clear = false;
  std::thread clearer([&] {
    relay.Clear();
    done_before_clear = part->load();
    part.reset();
  });
  may_end.Notify();
  caller.join();
  clearer.join();
  EXPECT_TRUE(done_before_clear);
}

TEST(PartRelayTest, APartIsDestroyedOnlyAfterItsCallHasEnded) {
  PartRelay<std::atomic<bool>> relay;
  absl::Notification called, may_end;
  bool set_in_time = false;
  RelayedPart<std::atomic<bool>> part(&relay);
  EXPECT_TRUE(part == nullptr);
  part.Own(std::make_unique<std::atomic<bool>>(false));
  EXPECT_FALSE(part->load());
  std::thread caller([&] {
    relay.With([&](std::atomic<bool>& it) {
      called.Notify();
      may_end.WaitForNotification();
      it = true;
      set_in_time = true;
    });
  });
  called.WaitForNotification();
  std::thread owner([&] {
    part.reset();
    EXPECT_TRUE(set_in_time);
  });
  may_end.Notify();
  caller.join();
  owner.join();
  EXPECT_TRUE(part == nullptr);
  EXPECT_FALSE(relay.With([](std::atomic<bool>&) {}));
}

// As the broker's threads do while the daemon is put together and taken apart.
TEST(PartRelayTest, PartsComeAndGoUnderCalls) {
  PartRelay<std::atomic<int>> relay;
  std::atomic<bool> stop = false;
  std::thread caller([&] {
    while (!stop) relay.With([](std::atomic<int>& it) { ++it; });
  });
  for (int i = 0; i < 1000; ++i) {
    auto part = std::make_unique<std::atomic<int>>(0);
    relay.Set(part.get());
    relay.Clear();
    const int calls = *part;
    EXPECT_EQ(*part, calls);
  }
  stop = true;
  caller.join();
}

}  // namespace
}  // namespace gpumemd
