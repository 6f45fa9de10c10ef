// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/polling/inline_work.h"

#include "gtest/gtest.h"

namespace gpumemd {
namespace {

TEST(InlinePolicyTest, AllowsWhileMostWorkIsShort) {
  InlinePolicy policy;
  absl::Time now = absl::UnixEpoch();
  const auto allows_after = [&](absl::Duration took) {
    now += absl::Seconds(1);
    policy.Ended(took, /*on_worker=*/true);
    return policy.Allows(now, 0);
  };
  EXPECT_TRUE(policy.Allows(now, 0));
  EXPECT_TRUE(allows_after(absl::Milliseconds(50)));
  EXPECT_FALSE(allows_after(absl::Milliseconds(50)));
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(allows_after(absl::Microseconds(100))) << i;
  EXPECT_TRUE(allows_after(absl::Microseconds(100)));
}

TEST(InlinePolicyTest, ForbidsAfterAnotherClientHasWaited) {
  InlinePolicy policy;
  const absl::Time now = absl::UnixEpoch();
  EXPECT_TRUE(policy.Allows(now, 0));
  EXPECT_FALSE(policy.Allows(now + absl::Seconds(1), 2));
  EXPECT_FALSE(policy.Allows(now + absl::Milliseconds(1100), 2));
  EXPECT_TRUE(policy.Allows(now + absl::Milliseconds(1201), 2));
  EXPECT_FALSE(policy.Allows(now + absl::Milliseconds(1202), 3));
}

// A client could block all threads of the queue.
TEST(InlinePolicyTest, AllowsOneWorkAtATime) {
  InlinePolicy policy;
  const absl::Time now = absl::UnixEpoch();
  EXPECT_TRUE(policy.Allows(now, 0));
  policy.Begins();
  EXPECT_FALSE(policy.Allows(now + absl::Seconds(10), 0));
  policy.Ended(absl::Microseconds(100), /*on_worker=*/true);
  EXPECT_FALSE(policy.Allows(now + absl::Seconds(21), 0));
  policy.Ended(absl::Microseconds(100), /*on_worker=*/false);
  EXPECT_TRUE(policy.Allows(now + absl::Seconds(23), 0));
}

TEST(RunInlineTest, OnlyOnThreadsOfTheQueue) {
  EXPECT_FALSE(RunInline([] { ADD_FAILURE(); }));
  bool ran = false;
  RunOnWorker([&] { ran = true; });
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace gpumemd
