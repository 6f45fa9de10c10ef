// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/bench/latency/pair_samples.h"
#include "tests/bench/latency/process_stats.h"
#include "tests/support/child.h"

namespace gpumem::bench {
namespace {

TEST(PairSamplesTest, HasZerosWithoutPairs) {
  const PairSamples::Summary summary = PairSamples().Summarize();
  EXPECT_EQ(summary.pairs, 0u);
  EXPECT_EQ(summary.ratio, 0);
  EXPECT_EQ(summary.ratio_q3, 0);
}

TEST(PairSamplesTest, TakesMediansOfEachSideAndQuartilesOfTheRatios) {
  PairSamples samples;
  samples.Add(/*floor=*/10, /*call=*/20);
  samples.Add(20, 20);
  samples.Add(30, 120);
  samples.Add(40, 120);
  samples.Add(1000, 120);
  const PairSamples::Summary summary = samples.Summarize();
  EXPECT_EQ(summary.pairs, 5u);
  EXPECT_EQ(summary.floor_median, 30);
  EXPECT_EQ(summary.floor_p99, 1000);
  EXPECT_EQ(summary.call_median, 120);
  EXPECT_EQ(summary.ratio, 4);
  // Of 0.12, 1, 2, 3 and 4.
  EXPECT_EQ(summary.ratio_q1, 1);
  EXPECT_EQ(summary.ratio_q3, 3);
}

TEST(PairSamplesTest, DividesByNoFloorOfZero) {
  PairSamples samples;
  samples.Add(0, 20);
  EXPECT_EQ(samples.Summarize().ratio, 0);
}

TEST(ProcessStatsTest, CountsTheSwitchesOfAllThreads) {
  const uint64_t before = ContextSwitches(getpid());
  absl::Notification slept, counted;
  std::thread sleeps([&] {
    for (int i = 0; i < 20; ++i) absl::SleepFor(absl::Microseconds(1));
    slept.Notify();
    counted.WaitForNotification();
  });
  // Each sleep is a switch of the other thread. This one switches once or twice.
  slept.WaitForNotification();
  EXPECT_GE(ContextSwitches(getpid()), before + 20);
  counted.Notify();
  sleeps.join();
}

TEST(ProcessStatsTest, KnowsNothingOfAProcessThatIsGone) {
  testing::Child child({"/bin/true"});
  const pid_t pid = child.pid();
  child.Wait();
  EXPECT_EQ(ContextSwitches(pid), 0u);
  EXPECT_EQ(AllowedCpus(pid), "");
}

TEST(ProcessStatsTest, RunsThisThreadAndItsChildrenOnTheCpus) {
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  int first = 0;
  while (!CPU_ISSET(first, &mine)) ++first;
  std::thread([&] {
    ASSERT_TRUE(RunOnCpus(absl::StrCat(first)).ok());
    const testing::Child child({"/bin/sleep", "60"});
    EXPECT_EQ(AllowedCpus(child.pid()), absl::StrCat(first));
  }).join();
}

TEST(ProcessStatsTest, RefusesWhatIsNoListOfCpus) {
  for (const char* list : {"", "a", "3-", "-3", "3-1", "0-1-2", "0,,1", "99999999"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(RunOnCpus(list))) << list;
  }
}

TEST(ProcessStatsTest, SaysThatTheKernelAllowsNone) {
  EXPECT_TRUE(absl::IsFailedPrecondition(RunOnCpus("1023")));
}

}  // namespace
}  // namespace gpumem::bench
