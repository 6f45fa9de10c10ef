// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/broker/suspension/copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gpumemd {
namespace copies_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr CopyItem Of(uint64_t bytes) { return {.bytes = bytes}; }

class CopiesTest : public ::testing::Test {
 protected:
  // Each copy waits for `go`.
  Copies Make(absl::Duration hold = absl::ZeroDuration()) {
    return Copies(
        [this](size_t device, const std::vector<CopyItem>& items) {
          uint64_t bytes = 0;
          for (const CopyItem& item : items) bytes += item.bytes;
          {
            absl::MutexLock lock(&mutex_);
            copied_.emplace_back(device, bytes);
          }
          if (!begun_.HasBeenNotified()) begun_.Notify();
          go_.WaitForNotification();
          return status_;
        },
        hold, absl::Now);
  }

  absl::Mutex mutex_;
  std::vector<std::pair<size_t, uint64_t>> copied_;  // device and bytes of each call
  absl::Notification begun_, go_;
  absl::Status status_;
};

TEST_F(CopiesTest, WhatComesQuicklyIsCopiedAtTheEnd) {
  go_.Notify();
  Copies copies = Make(absl::Hours(1));
  EXPECT_EQ(copies.Finish(), absl::OkStatus());
  copies.Add(1, Of(4));
  copies.Add(0, Of(3));
  copies.Add(1, Of(2));
  EXPECT_THAT(copied_, IsEmpty());
  EXPECT_EQ(copies.Finish(), absl::OkStatus());
  EXPECT_THAT(copied_, ElementsAre(Pair(0, 3), Pair(1, 6)));
  EXPECT_EQ(copies.Finish(), absl::OkStatus());
  EXPECT_EQ(copied_.size(), 2u);
}

TEST_F(CopiesTest, CopiesWhileMoreIsAdded) {
  Copies copies = Make();
  copies.Add(0, Of(11));
  begun_.WaitForNotification();
  copies.Add(0, Of(20));  // does not wait for the copy
  copies.Add(0, Of(30));
  go_.Notify();
  EXPECT_EQ(copies.Finish(), absl::OkStatus());
  EXPECT_THAT(copied_, ElementsAre(Pair(0, 11), Pair(0, 50)));
}

TEST_F(CopiesTest, AfterAnErrorNothingIsCopied) {
  status_ = absl::UnavailableError("the copier ended");
  Copies copies = Make();
  copies.Add(0, Of(10));
  begun_.WaitForNotification();
  copies.Add(0, Of(10));
  go_.Notify();
  EXPECT_EQ(copies.Finish(), status_);
  EXPECT_THAT(copied_, ElementsAre(Pair(0, 10)));
  copies.Add(0, Of(10));  // no copy is under way
  EXPECT_EQ(copies.Finish(), status_);
  EXPECT_THAT(copied_, ElementsAre(Pair(0, 10)));
}

TEST_F(CopiesTest, ItsEndAwaitsTheCopy) {
  std::optional<std::thread> other;
  {
    Copies copies = Make();
    copies.Add(0, Of(10));
    copies.Add(0, Of(5));
    begun_.WaitForNotification();
    other.emplace([this] { go_.Notify(); });
  }
  EXPECT_TRUE(go_.HasBeenNotified());
  EXPECT_THAT(copied_, ElementsAre(Pair(0, 10))) << "the rest was given up";
  other->join();
}

}  // namespace copies_test
}  // namespace gpumemd
