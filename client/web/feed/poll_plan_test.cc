// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/poll_plan.h"

#include <gtest/gtest.h>

#include "absl/time/time.h"

namespace gpumem::web {
namespace {

constexpr absl::Duration kAge = absl::Milliseconds(100);
const absl::Time kBegin = absl::FromUnixSeconds(1'700'000'000);

absl::Duration Ms(int64_t ms) { return absl::Milliseconds(ms); }

// Lets a request come each 5 ms for 20 s. Returns the share of the time that queries took.
double ShareOf(PollPlan& plan, absl::Duration query, bool ok) {
  absl::Duration took;
  absl::Time now = kBegin;
  while (now < kBegin + absl::Seconds(20)) {
    now += Ms(5);
    if (!plan.IsDueForRequest(kAge, now)) continue;
    plan.Done(now, now + query, ok);
    now += query;
    took += query;
  }
  return absl::FDivDuration(took, now - kBegin);
}

TEST(PollPlan, RequestsGetAFifthOfTheTime) {
  for (const int64_t ms : {1, 20, 60, 200, 1000}) {
    PollPlan plan(absl::Seconds(1));
    const double share = ShareOf(plan, Ms(ms), true);
    EXPECT_LE(share, 0.25) << ms;  // one more has begun at the end
    EXPECT_GT(share, ms >= 60 ? 0.15 : 0) << ms;
  }
}

TEST(PollPlan, RequestsGetAYoungState) {
  PollPlan plan(absl::Seconds(1));
  EXPECT_TRUE(plan.IsDueForRequest(kAge, kBegin)) << "there is none";
  plan.Done(kBegin, kBegin + Ms(2), true);
  EXPECT_FALSE(plan.IsDueForRequest(kAge, kBegin + Ms(100)));
  EXPECT_TRUE(plan.IsDueForRequest(kAge, kBegin + Ms(103)));
  EXPECT_FALSE(plan.IsDueForRequest(absl::Seconds(2), kBegin + Ms(103)));
  EXPECT_TRUE(plan.IsDueForRequest(kAge, kBegin - Ms(1))) << "the clock was set back";
  plan.Forget();
  EXPECT_TRUE(plan.IsDueForRequest(kAge, kBegin + Ms(3)));
}

TEST(PollPlan, AFailureThatTookLongHolds) {
  PollPlan plan(absl::Seconds(1));
  const absl::Time end = kBegin + absl::Seconds(5);
  plan.Done(kBegin, end, false);
  EXPECT_FALSE(plan.IsDueForRequest(kAge, end + Ms(999)));
  EXPECT_FALSE(plan.IsDue(end + Ms(999)));
  EXPECT_TRUE(plan.IsDueForRequest(kAge, end + Ms(1000)));
  plan.Done(end, end + Ms(1), false);
  EXPECT_FALSE(plan.IsDueForRequest(kAge, end + Ms(100)));
  EXPECT_TRUE(plan.IsDueForRequest(kAge, end + Ms(101))) << "it was a quick one";
}

TEST(PollPlan, SubscribersAreServedEachIntervalAndSooner) {
  PollPlan plan(absl::Seconds(1));
  EXPECT_TRUE(plan.IsDue(kBegin));
  plan.Done(kBegin, kBegin + Ms(10), true);
  EXPECT_EQ(plan.next(), kBegin + absl::Seconds(1));
  plan.Hasten();
  EXPECT_EQ(plan.next(), kBegin + Ms(250));
  plan.Done(kBegin, kBegin + Ms(500), true);
  plan.Hasten();
  EXPECT_EQ(plan.next(), kBegin + Ms(2500)) << "a fifth of the time at most";
  absl::Time now = kBegin;
  for (const int64_t pause : {100, 200, 400, 800, 1600, 2000, 2000}) {
    plan.Done(now, now, false);
    EXPECT_EQ(plan.next(), now + Ms(pause));
    now = plan.next();
  }
}

}  // namespace
}  // namespace gpumem::web
