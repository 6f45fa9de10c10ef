// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/meter/frame_budget.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace gpumemd {
namespace {

using Decision = FrameBudget::Decision;

TEST(FrameBudgetTest, ABurstAndARate) {
  FrameBudget budget({.max_resets = 10, .resets_per_second = 2});
  const absl::Time start = absl::Now();
  EXPECT_EQ(budget.Charge({.resets = 10}, start), Decision::kServe);
  EXPECT_EQ(budget.Charge({.resets = 4}, start + absl::Seconds(2)), Decision::kServe);
  EXPECT_EQ(budget.Charge({.resets = 10}, start + absl::Hours(1)),
            Decision::kServe);  // no more than at the start
  EXPECT_FALSE(budget.exhausted());
  EXPECT_EQ(budget.Charge({.resets = 3}, start + absl::Hours(1) + absl::Seconds(1)),
            Decision::kFlood);
  EXPECT_TRUE(budget.exhausted());
}

TEST(FrameBudgetTest, OnceExhaustedItStaysSo) {
  FrameBudget budget({.max_control = 1, .control_per_second = 1000});
  const absl::Time start = absl::Now();
  EXPECT_EQ(budget.Charge({.control = 2}, start), Decision::kFlood);
  EXPECT_EQ(budget.Charge({}, start + absl::Hours(1)), Decision::kFlood);
}

TEST(FrameBudgetTest, AfterAFloodAnEighthIsThereAndTheRestComesBack) {
  const FrameBudgetOptions after =
      FrameBudgetOptions{.max_resets = 80, .resets_per_second = 8}.AfterFlood();
  const absl::Time start = absl::Now();
  EXPECT_EQ(FrameBudget(after).Charge({.resets = 11}, start), Decision::kFlood);
  FrameBudget budget(after);
  EXPECT_EQ(budget.Charge({.resets = 10}, start), Decision::kServe);
  EXPECT_EQ(budget.Charge({.resets = 80}, start + absl::Seconds(10)), Decision::kServe);
  EXPECT_EQ(budget.Charge({.resets = 1}, start + absl::Seconds(10)), Decision::kFlood);
}

TEST(FrameBudgetTest, CallsBringFramesWithThem) {
  FrameBudget budget({.max_control = 10, .control_per_second = 0, .control_per_call = 4});
  const absl::Time start = absl::Now();
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(budget.Charge({.calls = 10, .control = 40}, start), Decision::kServe) << i;
  }
  EXPECT_EQ(budget.Charge({.control = 10}, start), Decision::kServe);
  EXPECT_EQ(budget.Charge({.calls = 1, .control = 5}, start), Decision::kFlood);
}

TEST(FrameBudgetTest, RequestsThatEndGiveTheirBytesBack) {
  FrameBudget budget({.max_begun_bytes = 1000,
                      .begun_bytes_per_second = 1,
                      .max_closed = 2,
                      .closed_per_second = 1});
  const absl::Time start = absl::Now();
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(budget.Charge({.begun_bytes = 900}, start), Decision::kServe) << i;
    ASSERT_EQ(budget.Charge({.ended_bytes = 900}, start), Decision::kServe) << i;
  }
  EXPECT_EQ(budget.Charge({.begun_bytes = 1000}, start), Decision::kServe);
  const absl::Time later = start + absl::Seconds(100);
  EXPECT_EQ(budget.Charge({.begun_bytes = 100}, later), Decision::kServe);
  // The connections that are too much are closed; a peer that makes new ones at once floods.
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(budget.Charge({.begun_bytes = 500}, later), Decision::kClose);
    budget.Return(500);
    EXPECT_EQ(budget.Charge({.calls = 1}, later), Decision::kServe);
  }
  EXPECT_EQ(budget.Charge({.begun_bytes = 500}, later), Decision::kFlood);
  EXPECT_TRUE(budget.exhausted());
}

TEST(FrameBudgetTest, AClockThatGoesBackTakesNothing) {
  FrameBudget budget({.max_resets = 2, .resets_per_second = 1});
  const absl::Time start = absl::Now();
  EXPECT_EQ(budget.Charge({.resets = 1}, start), Decision::kServe);
  EXPECT_EQ(budget.Charge({.resets = 1}, start - absl::Hours(1)), Decision::kServe);
}

}  // namespace
}  // namespace gpumemd
